# PyTorch: hooks and glue only. adapter.py puts them on; contract.py is what a wrapper must answer.
