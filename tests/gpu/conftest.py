# Tests that need a CUDA device: where there is none they fail, for they are only run on purpose.
import pathlib
import sys

import pytest
import torch

PYTHON = pathlib.Path(__file__).resolve().parents[1] / "python"
sys.path[:0] = [str(PYTHON), str(PYTHON / "watch"), str(PYTHON / "checks")]


@pytest.fixture(scope="session", autouse=True)
def kernels():
    from trainmon import _core

    assert torch.cuda.is_available(), "torch sees no CUDA device"
    assert not _core.cuda_unavailable(0), _core.cuda_unavailable(0)
