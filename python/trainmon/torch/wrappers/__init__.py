# Ways of spreading a model over processes, one file each over contract.py (docs/adapters.md).
