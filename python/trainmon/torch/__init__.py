# The PyTorch adapter: adapter.py puts the wings on a model and its optimizers.
