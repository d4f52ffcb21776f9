# What is put on modules, tensors and optimizers, and being harmless there: the other wings build on it.
