# What `from msprobe.pytorch import ...` gives.
