# Promise 5 for real trainings: killed at any moment again and again, each time resumed from the checkpoint.
import numpy as np
import pytest
import torch

import chain_run
import trainmon
from long_form import campaign, dice, how_often

KILLS_OF_A_RUN = 12
NAMES = [name for name, _ in chain_run.training()[0].named_parameters()]
# Of a step: gradients as they reach the optimizer, weights before and after.
WHOLE = {
    (kind, name) for kind in ("grad_reduced", "param_origin", "param_updated") for name in NAMES
}


class Oracle:
    """What the same training, never interrupted and not watched, has at each step."""

    def __init__(self):
        self._model, self._optimizer = chain_run.training()
        self._steps = []

    def __call__(self, step):
        while len(self._steps) <= step:
            before = self._values("param_origin", lambda p: p)
            chain_run.backward(self._model, len(self._steps))
            gradients = self._values("grad_reduced", lambda p: p.grad)
            self._optimizer.step()
            after = self._values("param_updated", lambda p: p)
            self._optimizer.zero_grad()
            self._steps.append({**before, **gradients, **after})
        return self._steps[step]

    def _values(self, kind, of):
        found = {}
        for name, parameter in self._model.named_parameters():
            values = of(parameter).detach().double().numpy()
            found[kind, name] = (values.min(), values.max(), np.sqrt(np.square(values).sum()))
        return found


class Chain:
    """A run directory and what is known of it from outside."""

    def __init__(self, place, oracle, **keys):
        self.run = place / "run"
        self.job = {"out": str(self.run), "checkpoint": str(place / "checkpoint.pt"), **keys}
        self.oracle = oracle
        self.starts = {}  # restart -> (first step, last step that was flushed)
        self.saved = 0
        self.again = 0  # steps that a later start went through again

    def take(self, life):
        """Takes in what a killed start has said, and looks at what it left."""
        assert (life.code, life.hung) == (-9, False), life
        said = [(word, int(number)) for word, number in map(str.split, life.said)]
        (_, first), *rest = said
        assert first == self.saved or (first > self.saved and first == self._checkpoint()), life
        steps = [number for word, number in rest if word == "step"]
        assert steps == list(range(first, first + len(steps)))
        flushed = max([number for word, number in rest if word == "flushed"], default=first - 1)
        self.saved = self._checkpoint()
        number = len(list((self.run / "rank_00000").glob("restart_*"))) - 1
        if number in self.starts or number < 0:
            assert not steps  # killed before it had a directory
            number = -1
        else:
            self.starts[number] = (first, flushed)
        self.check(number, steps)

    def _checkpoint(self):
        try:
            return torch.load(self.job["checkpoint"])["step"]
        except FileNotFoundError:
            return 0

    def check(self, newest, said):
        if not self.starts:
            return
        table = self._read(all_restarts=True)
        restarts, steps = np.asarray(table["restart"]), np.asarray(table["step"])
        for number, (first, flushed) in self.starts.items():
            mine = restarts == number
            self._prefix(np.asarray(table["seq"])[mine], steps[mine], first, flushed)
        if newest >= 0 and len(said):
            # It said the last step after its rows were handed over: nothing beyond that and the next.
            assert steps[restarts == newest].max(initial=-1) <= said[-1] + 1
        # Of a step that was gone through again the newest rows, and no hole across restarts.
        newest_of = {}
        for step, number in zip(steps.tolist(), restarts.tolist()):
            newest_of[step] = max(number, newest_of.get(step, -1))
        self.again = len(set(zip(steps.tolist(), restarts.tolist()))) - len(newest_of)
        shown = self._read()
        pairs = set(zip(shown["step"].tolist(), shown["restart"].tolist()))
        assert pairs == set(newest_of.items())
        assert sorted(newest_of) == list(range(len(newest_of)))
        self._values(shown)

    def _read(self, **keys):
        table = trainmon.read_table(str(self.run), **keys)
        assert table.damage == []
        return table

    def _prefix(self, seq, steps, first, flushed):
        assert np.sort(seq).tolist() == list(range(1, len(seq) + 1)), "a hole or a repeat"
        there = np.unique(steps).tolist()
        assert there == list(range(first, first + len(there)))
        whole = [step for step in there if (steps == step).sum() == len(WHOLE)]
        assert whole == there[: len(whole)] and len(there) - len(whole) <= 1
        assert len(whole) >= flushed + 1 - first, "flushed, yet lost"

    def _values(self, table):
        columns = [table[c].tolist() for c in ("step", "kind", "name", "min", "max", "norm")]
        for step, kind, name, low, high, norm in zip(*columns):
            expected = self.oracle(step)[kind, name]
            assert (low, high) == expected[:2], (step, kind, name)
            assert norm == pytest.approx(expected[2], rel=1e-12)


@pytest.mark.filterwarnings("ignore:incomplete:RuntimeWarning")
def test_killed_trainings_leave_a_prefix_without_holes_across_restarts(tmp_path, chains):
    kills = how_often(short=8, long=5000)
    numbers, oracle, again = dice("kills"), Oracle(), 0
    what = "trainings of torch, killed at a random moment and resumed from their checkpoint"
    with campaign("kill_chains", what, "kills") as count:
        while count.done < kills:
            place = tmp_path / str(count.done)
            place.mkdir()
            flush = numbers.choice([0.005, 0.05, 1.0])
            chain = Chain(place, oracle, flush_seconds=flush, recorder_mb=numbers.choice([0, 1]))
            for _ in range(min(KILLS_OF_A_RUN, kills - count.done)):
                chain.take(chains.live(chain.job, kill_after=numbers.uniform(0.0, 0.15)))
                count.done += 1
            again += chain.again
    assert kills < 100 or again > kills / 12, "hardly a step was gone through again"
