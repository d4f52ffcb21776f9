# Rows of what modules are rather than of what they return: attention, spectra of weights, routers.
