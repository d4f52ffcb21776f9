# Rows of parameters: gradients as they accumulate, and what is read around a step.
