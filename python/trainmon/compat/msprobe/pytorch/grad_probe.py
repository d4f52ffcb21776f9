# PrecisionDebugger on PyTorch.
from __future__ import annotations

from trainmon.compat.msprobe.precision_debugger import DebuggerFace
from trainmon.torch.probe.grad_probe import GradProbe, check_model


class PeerFiles(GradProbe):
    """The peer's heading of the digests, whichever they are."""

    def _digest_column(self, digest: str) -> str:
        return "MD5"


class PrecisionDebugger(DebuggerFace):
    __doc__ = DebuggerFace.__doc__

    def _check(self, model):
        check_model(model)

    def _new_probe(self, model, **settings):
        return PeerFiles(model, **settings)
