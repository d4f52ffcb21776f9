# trainmon.GradProbe: gradients as optimizers are given them, with signs and digests.
