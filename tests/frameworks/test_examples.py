# The examples of trainers and of diffusers.
import pytest

from example_case import check


@pytest.mark.parametrize(
    "name", ["transformers_trainer", "accelerate_loop", "lightning_trainer", "diffusers_unet"]
)
def test_an_example_runs(name, tmp_path):
    check(name, tmp_path, steps=5)  # the Trainer logs every fifth step
