# Forwards that are none of the training.
from __future__ import annotations

import sys

_PIPELINES = "torch.distributed.pipelining.stage"
_INFERENCE = ("_forward_metadata_inference", "_shape_inference")


def is_for_shapes() -> bool:
    """Whether a stage of a pipeline calls its module to learn the shapes of what it gives. What the
    module is given there is memory that nobody has written. (Private names: others are not seen.)"""
    stage = sys.modules.get(_PIPELINES)
    if stage is None:
        return False
    frame = sys._getframe(1)
    while frame is not None:
        code = frame.f_code
        if code.co_name in _INFERENCE and code.co_filename == stage.__file__:
            return True
        frame = frame.f_back
    return False
