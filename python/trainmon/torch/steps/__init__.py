# Optimizers, their steps and the windows between them.
