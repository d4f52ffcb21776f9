# PrecisionDebugger on MindSpore: monitor() takes the optimizer.
from __future__ import annotations

from trainmon.compat.msprobe.precision_debugger import DebuggerFace
from trainmon.mindspore import arguments
from trainmon.mindspore.grad_probe import GradProbe


class PrecisionDebugger(DebuggerFace):
    __doc__ = DebuggerFace.__doc__

    def _check(self, model):
        arguments.optimizers(model)

    def _new_probe(self, model, **settings):
        return GradProbe(model, digest_column="MD5", **settings)
