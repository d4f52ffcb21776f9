# msprobe's monitor manual under DeepSpeed: its snippets run with only the import changed.
import functools
import pathlib

import pytest
import torch

import compat_case as case
import equality_gpt as gpt
import equality_oracle
import launch

RUN = pathlib.Path(__file__).with_name("deepspeed_face_run.py")


@functools.cache
def _oracle(each_micro):
    return equality_oracle.train(each_micro=each_micro)


def _norms(folder, rank, prefix, step):
    """(name, micro step or -1) -> norm"""
    (place,) = case.folders(folder, rank)
    table = case.rows(place, prefix, step)
    micros = table["micro_step"] if "micro_step" in table else [-1] * len(table["name"])
    names = [name.removeprefix("module.") for name in table["name"]]
    keys = list(zip(names, map(int, micros), strict=True))
    assert len(set(keys)) == len(keys)
    return dict(zip(keys, map(float, table["norm"]), strict=True))


@pytest.mark.parametrize("snippet, stage", [("quick", 2), ("accelerate", 1), ("groups", 3)])
def test_the_manuals_snippets(snippet, stage, tmp_path):
    accelerator = {"DS_ACCELERATOR": "cpu"}
    for what in (snippet, "bare"):
        arguments = RUN, tmp_path, what, stage
        launch.run(*arguments, ranks=gpt.RANKS, timeout=300, environment=accelerator)
    for rank in range(gpt.RANKS):
        watched, bare = (torch.load(tmp_path / f"{w}.{rank}.pt") for w in (snippet, "bare"))
        for what in ("losses", "final"):
            pairs = list(zip(watched[what], bare[what], strict=True))
            assert pairs and all(torch.equal(a, b) for a, b in pairs), what
    expected = _oracle(stage > 1)
    names = [key[1] for key in expected if key[0] == "param_origin" and key[2] == 0]
    assert len(names) == 29

    def found(prefix, step):
        return [_norms(tmp_path / snippet, rank, prefix, step) for rank in range(gpt.RANKS)]

    for step in range(gpt.STEPS):
        for rank, rows in enumerate(found("grad_unreduced", step)):
            wanted = {
                (name, micro): expected["grad_unreduced", name, step, micro, rank]["norm"]
                for name in names
                for micro in range(gpt.MICRO_STEPS)
            }
            assert rows == pytest.approx(wanted, rel=1e-4, abs=1e-7)
        kinds = {"grad_reduced": step, "param_origin": step, "param_updated": step}
        if step:
            kinds.update(exp_avg=step - 1, exp_avg_sq=step - 1)  # as the step finds them
        for kind, of in kinds.items():
            parts = found(kind, step)
            assert {name for rows in parts for name, _ in rows} == set(names)
            for name in names:  # each rank has its part of a parameter, or none
                whole = sum(rows.get((name, -1), 0.0) ** 2 for rows in parts) ** 0.5
                wanted = expected[kind, name, of, -1, -1]["norm"]
                assert whole == pytest.approx(wanted, rel=1e-4, abs=1e-9), (kind, name)
