# Tensors whose memory is not what their sizes say: refused by name, in processes that must not crash.
import pathlib
import subprocess
import sys

import pytest

RUN = pathlib.Path(__file__).parents[1] / "programs/storages_run.py"


def run(*arguments):
    done = subprocess.run(
        [sys.executable, str(RUN), *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert done.returncode == 0 and done.stdout.endswith("done\n"), (
        done.returncode,
        done.stderr[-3000:],
    )


def test_a_storage_smaller_than_the_sizes_is_refused_by_name():
    run("small")


@pytest.mark.parametrize("backend", ["auto", "ops"])
def test_training_goes_on_where_weights_were_freed(tmp_path, backend):
    run("watched", tmp_path / "run", backend)


def test_a_tensor_whose_data_another_thread_replaces_is_measured():
    run("replaced")


def test_a_subclass_does_not_see_that_its_storage_is_looked_at():
    run("subclass")
