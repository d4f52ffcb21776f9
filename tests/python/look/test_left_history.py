"""Where no check found anything certain: which value left its own history far behind, in the words of
`trainmon diagnose`, in Python and on the page, beside NumPy."""

from __future__ import annotations

import json
import shlex

import numpy as np
import pytest
import torch

import trainmon
from test_report import command, report
from test_unusual import distance, scored
from written_run import WrittenRank

STEPS = 100
BEGIN = 72  # the first step of the fault, which is not the one that is furthest off


def noisy(seed=3):
    """Norms of a step, and the series so far."""
    random = np.random.default_rng(seed)
    while True:
        yield float(np.exp(random.normal() * 0.05))


def written(out, value_of, ranks=1, kind="grad_reduced", elements=lambda step: 3, **series):
    """Of each rank the tensors a and b; value_of(rank, name, step, noise) is the norm. What is written."""
    random = noisy()
    norms = {}
    all_ranks = [WrittenRank(out, number, ranks) for number in range(ranks)]
    for step in range(STEPS):
        for number, rank in enumerate(all_ranks):
            for name in ("layers.0.a", "layers.1.b"):
                norm = value_of(number, name, step, next(random))
                count = elements(step)
                rank.observe(np.full(count, norm / count**0.5), kind, name, step, **series)
                norms.setdefault((number, name), []).append(norm)
            rank.end_step()
    for rank in all_ranks:
        rank.stop()
    return norms


def broken(number, name, step, noise):
    """From BEGIN on each step of one tensor on rank 1 is larger."""
    is_bad = (number, name) == (1, "layers.1.b") and BEGIN <= step < BEGIN + 6
    return noise * 1e6 ** (1 + (step - BEGIN) / 10) if is_bad else noise


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    out = tmp_path_factory.mktemp("left") / "run"
    return out, written(out, broken, ranks=2)


def test_the_step_where_it_began_is_named(run):
    out, norms = run
    series = np.array(norms[1, "layers.1.b"])
    score, step, usual = scored(series[: BEGIN + 1])
    assert step == BEGIN and score > 50
    assert trainmon.top(out, count=1)[0].step > BEGIN  # by NumPy, too
    assert scored(series)[1] == trainmon.top(out, count=1)[0].step
    found = trainmon.diagnose(out)
    assert found["verdict"] is None and found["findings"] == []
    left = found["left_history"]
    assert (left["step"], left["rank"], left["kind"]) == (BEGIN, 1, "grad_reduced")
    assert (left["name"], left["chunk"], left["element"]) == ("layers.1.b", 0, "")
    assert left["restart"] == 0
    assert left["norm"] == pytest.approx(series[BEGIN])
    assert (left["unusual"], left["before"]) == pytest.approx((score, usual))
    assert scored(np.array(norms[0, "layers.0.a"]))[0] < 20


def test_the_command_and_the_page_say_the_same(run, tmp_path):
    out, _ = run
    left = trainmon.diagnose(out)["left_history"]
    said = command("diagnose", out, check=0)
    lines = said.stdout.splitlines()
    at = lines.index("changed abruptly, which no check judges:")
    assert lines[at + 1] == f"  step {BEGIN}, rank 1, grad_reduced layers.1.b"
    number = [f"{left[key]:.3g}".replace("e+0", "e+") for key in ("norm", "before", "unusual")]
    text = (
        f"  its norm is {number[0]}, the median before is {number[1]}; "
        f"{number[2]} robust standard deviations off"
    )
    assert lines[at + 2].replace("e+0", "e+") == text
    assert lines[0].startswith("nothing certainly wrong in ")
    assert json.loads(command("diagnose", out, "--json", check=0).stdout)["left_history"] == left
    page, _ = report(out, tmp_path / "a.html", check=0)
    assert page.report["diagnosis"]["left_history"] == left
    (to_see,) = [line for line in said.stderr.splitlines() if line.startswith("next: ")]
    words = shlex.split(to_see.removeprefix("next: trainmon "))
    shown = json.loads(command(*words, "--json", check=0).stdout)
    assert {(row["name"], row["rank"], row["kind"]) for row in shown} == {
        ("layers.1.b", 1, "grad_reduced")
    }
    assert [row["step"] for row in shown] == list(range(BEGIN - 8, BEGIN + 8))


def test_where_options_leave_it_out_nothing_is_said(run):
    out, _ = run
    assert trainmon.diagnose(out, ranks=0)["left_history"] is None
    assert trainmon.diagnose(out, include="layers.1.b", ranks=1)["left_history"]["step"] == BEGIN
    assert "history" not in command("diagnose", out, "--rank", "0", check=0).stdout


def smaller(number, name, step, noise):
    """From BEGIN on both tensors of rank 1 are a fourth of what they were: no such row is far off."""
    return noise / (4 if number == 1 and step >= BEGIN else 1)


YOUNG = 64
SMALL = 1.08


def gaps(series):
    """By step: how far the next eight values are all above, or all below, the 16 before, and the range of these."""
    logs = np.log10(series)
    for step in range(16, len(logs) - 7):
        before, after = logs[step - 16 : step], logs[step : step + 8]
        gap = max(after.min() - before.max(), before.min() - after.max())
        yield step, gap, before.max() - before.min()


def stays_from(series, factor=2.5, young=4.0, is_even=True):
    """The first step from which a line stays away by itself."""
    for step, gap, width in gaps(series):
        is_wide = is_even and step >= YOUNG and gap >= np.log10(SMALL) and gap >= width
        if gap >= np.log10(factor if step >= YOUNG else young) or is_wide:
            return step
    return None


def test_a_line_that_left_its_range_for_good_is_named(tmp_path):
    out = tmp_path / "run"
    norms = written(out, smaller, ranks=2)
    series = np.array(norms[1, "layers.0.a"])
    score, step, usual = scored(series[: BEGIN + 1])
    assert stays_from(series) == BEGIN and scored(series)[0] < 50
    assert stays_from(np.array(norms[0, "layers.0.a"])) is None
    left = trainmon.diagnose(out)["left_history"]
    assert (left["step"], left["rank"], left["name"]) == (BEGIN, 1, "layers.0.a")
    assert (left["stays"], left["lines"]) == (True, 2)
    assert (left["norm"], left["before"]) == pytest.approx((series[BEGIN], usual))
    lines = command("diagnose", out, check=0).stdout.splitlines()
    apart = series[BEGIN - 16 : BEGIN].min() / series[BEGIN : BEGIN + 8].max()
    assert left["apart"] == pytest.approx(apart, rel=1e-5) and apart > 2.5
    said = f"the 8 values from here on are all below the 16 before, by a factor of at least {apart:.3g}"
    assert lines[3].endswith(said)
    assert left["module"] == "layers"
    assert lines[4] == "  1 more line in this step; all are in layers"
    page, _ = report(out, tmp_path / "a.html", check=0)
    assert page.report["diagnosis"]["left_history"] == left


@pytest.mark.parametrize(
    "names, module",
    [
        (("blocks.0.mlp.up.weight", "blocks.12.mlp.down.weight"), "blocks.*.mlp"),
        (("blocks.3.up.weight", "blocks.3.down.weight", "blocks.3.norm"), "blocks.3"),
        (("blocks.3.up.weight", "head.weight"), ""),
        (("weight", "bias"), ""),
        (("blocks.3.up.weight",), ""),
    ],
)
def test_the_module_that_lines_have_in_common_is_named(tmp_path, names, module):
    random = noisy()
    rank = WrittenRank(tmp_path / "run")
    for step in range(STEPS):
        for name in (*names, "wte.weight"):
            far = 1e6 if step >= BEGIN and name in names else 1.0
            rank.observe(np.full(3, next(random) * far), "grad_reduced", name, step)
        rank.end_step()
    rank.stop()
    left = trainmon.diagnose(tmp_path / "run")["left_history"]
    assert (left["step"], left["lines"], left["module"]) == (BEGIN, len(names), module)


def test_a_row_that_is_far_off_may_stay_so(run):
    out, norms = run
    assert stays_from(np.array(norms[1, "layers.1.b"])) is None  # it is there for six steps
    left = trainmon.diagnose(out)["left_history"]
    assert (left["stays"], left["lines"]) == (False, 1)


def jump(step):
    return 1e4 if step >= BEGIN else 1.0


# What healthy trainings do: value_of, and more of written().
HEALTHY = {
    "noise": (lambda number, name, step, noise: noise, {}),
    "falls_slowly": (lambda number, name, step, noise: noise * 0.9**step, {}),
    "falls_by_a_fifth_in_noise": (
        lambda number, name, step, noise: noise**6 * (0.8 if step >= BEGIN else 1.0),
        {},
    ),
    "weights_that_fall_by_half": (
        lambda number, name, step, noise: noise * (0.5 if step >= BEGIN else 1.0),
        {"kind": "param_origin"},
    ),
    "falls_by_a_third_when_young": (
        lambda number, name, step, noise: noise * (0.3 if step >= YOUNG - 1 else 1.0),
        {},
    ),
    "falls_for_seven_steps": (
        lambda number, name, step, noise: noise * (0.25 if 0 <= step - BEGIN < 7 else 1.0),
        {},
    ),
    "falls_before_its_history": (
        lambda number, name, step, noise: noise**6 * (0.01 if step >= 15 else 1.0),
        {},
    ),
    "a_moment": (
        lambda number, name, step, noise: noise * (0.25 if step >= BEGIN else 1.0),
        {"kind": "exp_avg"},
    ),
    "after_zeros": (lambda number, name, step, noise: noise if step >= BEGIN else 0.0, {}),
    "a_feature": (
        lambda number, name, step, noise: noise * jump(step),
        {"kind": "mg_direction"},
    ),
    "a_smaller_batch": (
        lambda number, name, step, noise: (3e-4 if step % 25 == 24 else 3.0) * (1 + 1e-3 * noise),
        {"kind": "input", "elements": lambda step: 3 if step % 25 == 24 else 3000},
    ),
    "larger_batches": (
        lambda number, name, step, noise: jump(step) * (1 + 1e-3 * noise),
        {"kind": "input", "elements": lambda step: 3000 if step >= BEGIN else 3},
    ),
}


@pytest.mark.parametrize("name", HEALTHY)
def test_a_healthy_training_is_silent(tmp_path, name):
    value_of, more = HEALTHY[name]
    written(tmp_path / "run", value_of, **more)
    assert trainmon.diagnose(tmp_path / "run")["left_history"] is None


@pytest.mark.parametrize("steps, more", [(128, ""), (129, " --steps 64:")])
def test_the_command_after_nothing_leaves_out_the_first_steps_of_a_long_run(tmp_path, steps, more):
    rank, random = WrittenRank(tmp_path / "run"), noisy()
    for step in range(steps):
        rank.observe(np.full(3, next(random)), "grad_reduced", "a", step)
        rank.monitor.add_scalar("loss", 1.0, step)
        rank.end_step()
    rank.stop()
    said = command("diagnose", tmp_path / "run", check=0)
    assert said.stderr.splitlines()[-1] == f"next: trainmon top {tmp_path / 'run'}{more}"
    assert "trainmon compare holds the run against a good one" in said.stdout


def drawn(seed):
    """Twelve lines of different noise, some of which shift at one of three steps."""
    random = np.random.default_rng(seed)
    lines = {}
    shift_at = random.integers(20, 100, 3)
    for number in range(12):
        noise = np.exp(random.normal(size=120) * random.choice([0.02, 0.1, 0.2, 0.3]))
        at = random.choice([*shift_at, 120], p=[0.4, 0.2, 0.1, 0.3])
        factor = np.where(np.arange(120) >= at, random.uniform(1.2, 3.5), 1.0)
        lines[f"blocks.{number}.w"] = noise * factor ** random.choice([-1, 1])
    return lines


@pytest.mark.parametrize("seed", range(24))
def test_the_step_in_which_most_left_is_that_of_numpy(tmp_path, seed):
    lines = drawn(seed)
    rank = WrittenRank(tmp_path / "run")
    for step in range(120):
        for name, series in lines.items():
            rank.observe(np.full(3, series[step] / 3**0.5), "grad_reduced", name, step)
        rank.end_step()
    rank.stop()
    left_in = {}
    for name, series in lines.items():
        far = [at for at in range(8, 120) if distance(series, at)[0] >= (100 if at < YOUNG else 50)]
        first = min([*far, stays_from(series) or 120])
        if first < 120:
            left_in.setdefault(first, set()).add(name)
    left = trainmon.diagnose(tmp_path / "run")["left_history"]
    if not left_in:
        assert left is None
        return
    counts = {at: len(names) for at, names in left_in.items()}
    most = min(at for at in counts if counts[at] == max(counts.values()))
    step = min(at for at in counts if at >= most - 16 and 4 * counts[at] >= counts[most])
    assert (left["step"], left["lines"]) == (step, counts.pop(step))
    assert left["name"] in left_in[step]
    others = {other["step"]: other["lines"] for other in left["others"]}
    assert others.items() <= counts.items() and len(others) == min(3, len(counts))
    assert sorted(others.values()) == sorted(counts.values())[-3:]


def test_the_first_inputs_of_a_start_are_compared_with_those_before(tmp_path):
    """By their means, which no other step is."""
    for name, factor, at, is_named in (
        ("sound", 1.0, 70, False),
        ("other", 1.05, 70, True),
        ("later", 1.05, 75, False),
    ):
        random = np.random.default_rng(3)
        norms = np.exp(random.normal(size=STEPS) * 0.02) * np.where(
            np.arange(STEPS) >= at, factor, 1
        )
        for begin, end in ((0, 70), (70, STEPS)):
            rank = WrittenRank(tmp_path / name)
            for step in range(begin, end):
                rank.observe(
                    np.full(300, norms[step] / 300**0.5), "input", "", step, element="input.0"
                )
                rank.end_step()
            rank.stop()
        left = trainmon.diagnose(tmp_path / name)["left_history"]
        assert (left is not None) == is_named
        if is_named:
            logs = np.log10(norms)
            apart = logs[70:78].mean() - logs[54:70].mean()
            error = np.sqrt(logs[70:78].var(ddof=1) / 8 + logs[54:70].var(ddof=1) / 16)
            assert apart > 6 * error
            assert (left["step"], left["restart"], left["kind"]) == (70, 1, "input")
            assert left["apart"] == pytest.approx(10**apart, rel=1e-5)
            said = command("diagnose", tmp_path / name).stdout
            assert "  step 70, where restart 1 begins, rank 0, input (root) input.0\n" in said
            assert "the mean of 8 values from here on is off that of the 16 before" in said


def test_the_mean_of_an_input_may_shift_where_its_norm_does_not(tmp_path):
    out = tmp_path / "run"
    random = np.random.default_rng(3)
    ranks = [WrittenRank(out, number, 2) for number in range(2)]
    means = []
    for step in range(STEPS):
        for number, rank in enumerate(ranks):
            shift = 0.5 if number == 1 and step >= BEGIN else 0.0
            values = random.normal(size=300) + shift
            values *= 20 / np.linalg.norm(values)
            if number == 1:
                means.append(values.mean() / np.sqrt(np.mean(values**2)))
            rank.observe(values, "input", "", step, element="input.0")
            rank.end_step()
    for rank in ranks:
        rank.stop()
    left = trainmon.diagnose(out)["left_history"]
    assert (left["step"], left["ranks"], left["kind"], left["measure"]) == (
        BEGIN,
        [1],
        "input",
        "mean",
    )
    after, before = means[BEGIN : BEGIN + 8], means[BEGIN - 16 : BEGIN]
    assert (left["norm"], left["before"], left["apart"]) == pytest.approx(
        (means[BEGIN], np.median(before), np.mean(after) - np.mean(before))
    )
    said = command("diagnose", out).stdout
    assert f"  step {BEGIN}, rank 1, input (root) input.0\n  its mean over its root mean" in said
    page, _ = report(out, tmp_path / "a.html", check=0)
    assert page.report["diagnosis"]["left_history"] == left


def test_of_several_lines_the_first_in_the_order_of_the_step_is_named(tmp_path):
    rank, random = WrittenRank(tmp_path / "run"), noisy()
    for step in range(STEPS):
        # What is first in step 0 is last in all others.
        for name in ("late", "middle", "first")[:: 1 if step == 0 else -1]:
            far = 10 if step >= BEGIN and name != "middle" else 1
            rank.observe(np.full(3, next(random) * far), "grad_reduced", name, step)
        rank.end_step()
    rank.stop()
    left = trainmon.diagnose(tmp_path / "run")["left_history"]
    assert (left["step"], left["name"], left["lines"]) == (BEGIN, "first", 2)
    assert left["stays"]
    line = {"kind": "grad_reduced", "name": "late", "chunk": 0, "element": ""}
    assert left["next"] == [line]
    assert "\n  then grad_reduced late\n" in command("diagnose", tmp_path / "run").stdout


def test_three_lines_behind_the_first_are_named(tmp_path):
    """Of the rank that is named, and the loss is said by itself."""
    ranks = [WrittenRank(tmp_path / "run", number, 2) for number in range(2)]
    random = noisy()
    for step in range(STEPS):
        for number, rank in enumerate(ranks):
            far = 10 if step >= BEGIN and number == 1 else 1
            for layer in range(6):
                rank.observe(np.full(3, next(random) * far), "grad_unreduced", f"l{layer}.w", step)
            rank.monitor.add_scalar("loss", next(random) * far)
            rank.end_step()
    for rank in ranks:
        rank.stop()
    left = trainmon.diagnose(tmp_path / "run")["left_history"]
    assert (left["rank"], left["name"], left["lines"]) == (1, "l0.w", 7)
    assert [one["name"] for one in left["next"]] == ["l1.w", "l2.w", "l3.w"]
    said = command("diagnose", tmp_path / "run").stdout
    assert "\n  then grad_unreduced l1.w, grad_unreduced l2.w, grad_unreduced l3.w\n" in said


def test_inputs_that_are_noticed_hide_nothing(tmp_path):
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Embedding(16, 4), torch.nn.Linear(4, 1))
    optimizer = torch.optim.SGD(model.parameters(), 1e-3)
    mon = trainmon.watch(model, optimizer, checks=True, every=1, out=tmp_path / "run")
    random = noisy()
    for step in range(STEPS):
        ids = torch.randint(2 if step >= BEGIN else 0, 16, (64,))
        if step < BEGIN:
            ids[0] = 0
        model(ids).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        mon.log(loss=next(random) * (2 if step >= BEGIN else 1))
    mon.stop()
    found = trainmon.diagnose(tmp_path / "run")
    assert [(one["step"], one["check"]) for one in found["findings"]] == [(BEGIN, "input")]
    left = found["left_history"]
    assert (left["step"], left["kind"], left["name"]) == (BEGIN, "logged", "loss")


def test_the_rank_is_that_of_what_others_do_not_show(tmp_path):
    ranks = [WrittenRank(tmp_path / "run", number, 2) for number in range(2)]
    random = noisy()
    for step in range(STEPS):
        for number, rank in enumerate(ranks):
            is_bad = step >= BEGIN
            rank.observe(
                np.full(3, next(random) * (1e4 if is_bad else 1)), "grad_reduced", "w", step
            )
            rank.monitor.add_scalar("loss", next(random) * (3 if is_bad and number == 1 else 1))
            rank.end_step()
    for rank in ranks:
        rank.stop()
    left = trainmon.diagnose(tmp_path / "run")["left_history"]
    assert (left["step"], left["rank"], left["lines"]) == (BEGIN, 1, 3)


def changed_at(out, at, jump_at):
    """Two of three weights change before step `at`, which is noticed, and the gradient of a tensor is
    larger from jump_at[name] on."""
    random = noisy()
    rank = WrittenRank(out)
    for step in range(STEPS):
        for name in ("u", "w", "x"):
            far = 1e6 if step >= jump_at.get(name, STEPS) else 1.0
            weight = 1.0 + step + (name != "u" and step >= at)
            rank.observe(np.full(3, weight), "param_origin", name, step)
            rank.observe(np.full(3, next(random) * far), "grad_reduced", name, step)
            rank.observe(np.full(3, weight + 1), "param_updated", name, step)
        rank.end_step()
    rank.stop()
    found = trainmon.diagnose(out)
    assert found["verdict"] is None
    assert [(one["step"], one["tensors"]) for one in found["findings"]] == [(at, ["w", "x"])]
    left = found["left_history"]
    return left and (left["name"], left["step"])


def test_what_was_noticed_of_a_tensor_may_be_why(tmp_path):
    assert changed_at(tmp_path / "same", 30, {"w": 34}) is None
    assert changed_at(tmp_path / "another", 30, {"u": 34}) == ("u", 34)
    assert changed_at(tmp_path / "before", 30, {"w": 28}) == ("w", 28)
    assert changed_at(tmp_path / "later", 30, {"w": 47}) == ("w", 47)


@pytest.mark.parametrize("gradients", [True, False])
@pytest.mark.parametrize("kind", ["exp_avg_sq", "max_exp_avg_sq"])
def test_moments_count_where_gradients_are_not_recorded(tmp_path, gradients, kind):
    random = noisy()
    rank = WrittenRank(tmp_path / "run")
    for step in range(STEPS):
        far = 1e6 if step >= BEGIN else 1.0
        rank.observe(np.full(3, next(random) * far), kind, "w", step)
        if gradients:
            rank.observe(np.full(3, next(random)), "grad_reduced", "w", step)
        rank.end_step()
    rank.stop()
    left = trainmon.diagnose(tmp_path / "run")["left_history"]
    assert (left and (left["step"], left["kind"])) == (None if gradients else (BEGIN, kind))


def test_beside_a_verdict_there_is_none(tmp_path):
    out = tmp_path / "run"
    rank = WrittenRank(out)
    for step, noise in zip(range(STEPS), noisy()):
        value = np.nan if step == 90 else noise * (1e6 if step == BEGIN else 1.0)
        rank.observe(np.full(3, value), "grad_reduced", "a", step)
        rank.end_step()
    rank.stop()
    found = trainmon.diagnose(out)
    assert found["verdict"]["step"] == 90 and found["left_history"] is None
    assert "history" not in command("diagnose", out, check=1).stdout


@pytest.mark.parametrize("name, is_up", [("loss", True), ("it's a loss", True), ("loss", False)])
def test_a_loss_of_one_rank_that_jumps_for_good_is_named(tmp_path, name, is_up):
    out = tmp_path / "run"
    random = noisy()
    ranks = [WrittenRank(out, number, 2) for number in range(2)]
    for step in range(STEPS):
        for number, rank in enumerate(ranks):
            rank.observe(np.full(3, next(random)), "grad_reduced", "w", step)
            falls = 3.0 / (step + 5) if number == 0 else 1.0  # slowly, which is no fault
            rises = (2.0 if is_up else 0.5) if number == 1 and step >= BEGIN else 1.0
            rank.monitor.add_scalar(name, falls * rises * next(random))
            rank.monitor.add_scalar("accuracy", 1e-6 if step >= BEGIN - 10 else 0.5)
            rank.end_step()
    for rank in ranks:
        rank.stop()
    left = trainmon.diagnose(out)["left_history"]
    assert (left["step"], left["rank"], left["kind"], left["name"]) == (BEGIN, 1, "logged", name)
    assert left["stays"] and (left["norm"] > 1.5 * left["before"]) == is_up
    told = command("diagnose", out, check=0)
    side = "above" if is_up else "below"
    said = f"the 8 values from here on are all {side} the 16 before, by a factor of at least 1."
    assert said in told.stdout
    (line,) = (line for line in told.stderr.splitlines() if line.startswith("next: "))
    shown = command(*shlex.split(line)[2:], check=0).stdout
    assert len(shown.splitlines()) == 1 + 2 * 16 and name not in shown
    page, _ = report(out, tmp_path / "a.html", check=0)
    assert page.report["diagnosis"]["left_history"] == left


def means_apart(values, step):
    """Of logarithms: how far 8 values are from the 16 before, and in standard errors."""
    logs = np.log(values)
    before, after = logs[step - 16 : step], logs[step : step + 8]
    apart = after.mean() - before.mean()
    return apart, abs(apart) / np.sqrt(before.var(ddof=1) / 16 + after.var(ddof=1) / 8)


@pytest.mark.parametrize("ranks", [[1], [0, 1]])
def test_a_loss_that_shifts_by_less_than_its_range_is_named_with_its_ranks(tmp_path, ranks):
    out = tmp_path / "run"
    random = noisy()
    written_ranks = [WrittenRank(out, number, 2) for number in range(2)]
    losses = {0: [], 1: []}
    for step in range(STEPS):
        for number, rank in enumerate(written_ranks):
            rank.observe(np.full(3, next(random)), "grad_reduced", "w", step)
            falls = 0.8 if number in ranks and step >= BEGIN else 1.0
            losses[number].append(falls * next(random))
            rank.monitor.add_scalar("loss", losses[number][-1])
            rank.end_step()
    for rank in written_ranks:
        rank.stop()
    left = trainmon.diagnose(out)["left_history"]
    assert (left["step"], left["ranks"], left["name"]) == (BEGIN, ranks, "loss")
    assert left["rank"] in ranks
    series = np.array(losses[left["rank"]])
    apart, errors = means_apart(series, BEGIN)
    assert errors > 7.5 and stays_from(series, 1.5, 1.5) is None
    assert left["apart"] == pytest.approx(np.exp(-apart))
    assert left["norm"] == pytest.approx(series[BEGIN])
    assert left["before"] == pytest.approx(np.exp(np.median(np.log(series[BEGIN - 16 : BEGIN]))))
    place = f"  step {BEGIN}, " + ("rank 1, " if ranks == [1] else "ranks 0-1, ") + "logged loss"
    assert place in command("diagnose", out, check=0).stdout.splitlines()


@pytest.mark.parametrize("count", [1, 3])
def test_one_element_may_change_its_sign(tmp_path, count):
    out = tmp_path / "run"
    small = {("layers.1.b", BEGIN): 1e-3}
    written(
        out,
        lambda rank, name, step, noise: noise * small.get((name, step), 1.0),
        kind="grad_unreduced",
        elements=lambda step: count,
    )
    assert trainmon.top(out, count=1)[0].unusual > 50
    left = trainmon.diagnose(out)["left_history"]
    assert (left and left["step"]) == (None if count == 1 else BEGIN)


@pytest.mark.parametrize(
    ("kind", "factor", "is_named"),
    [
        ("grad_reduced", 0.1, False),
        ("update", 0.1, False),
        ("grad_reduced", 10.0, True),
        ("grad_unreduced", 0.1, True),
    ],
)
def test_clipping_may_let_go_of_a_gradient_in_a_step(tmp_path, kind, factor, is_named):
    """It holds the norm at one value, in steps whose gradients are larger."""
    far = {("layers.0.a", BEGIN): factor, ("layers.1.b", BEGIN): factor}
    written(
        tmp_path / "run",
        lambda rank, name, step, noise: noise**0.01 * far.get((name, step), 1.0),
        kind=kind,
    )
    left = trainmon.diagnose(tmp_path / "run")["left_history"]
    assert (left and left["step"]) == (BEGIN if is_named else None)


AGAIN = (0, 5, 6, 14, 23)  # steps after BEGIN


@pytest.mark.parametrize(
    ("kind", "steps", "again"),
    [
        ("actv", AGAIN, 4),
        ("actv_grad", AGAIN[:-1], 3),
        ("actv", AGAIN[:3], None),  # too few
        ("actv", (*AGAIN[:3], 24), None),  # too late
        ("actv", (-40, *AGAIN), None),  # it had one before
        ("grad_unreduced", AGAIN, None),
    ],
)
def test_an_activation_that_is_off_now_and_then_is_named(tmp_path, kind, steps, again):
    far = {("layers.1.b", BEGIN + step): 0.6 for step in steps}
    out = tmp_path / "run"
    norms = written(
        out, lambda rank, name, step, noise: noise**0.2 * far.get((name, step), 1.0), kind=kind
    )
    series = np.array(norms[0, "layers.1.b"])
    assert 15 < distance(series, BEGIN)[0] < 50
    left = trainmon.diagnose(out)["left_history"]
    assert (left is not None) == (again is not None)
    if left:
        assert (left["step"], left["name"], left["lines"]) == (BEGIN, "layers.1.b", 1)
        assert left["again"] == again
        said = command("diagnose", out, check=0).stdout
        assert (
            f"robust standard deviations off, and {again} of the next 23 rows are as far off"
            in said
        )


@pytest.mark.parametrize(
    ("factor", "count", "at", "is_named"),
    [
        (1.3, 3, 70, True),
        (1.3, 2, 70, False),  # as it may be by chance
        (1.1, 3, 70, False),
        (1.3, 3, 75, False),  # in the middle of a start
    ],
)
def test_the_first_activations_of_a_start_are_compared_with_those_before(
    tmp_path, factor, count, at, is_named
):
    """By their means: each swings by more than it shifts."""
    random = np.random.default_rng(3)
    lines = {
        f"blocks.{number}": np.exp(np.where(np.arange(STEPS) % 2, 0.068, -0.068))
        * np.exp(random.normal(size=STEPS) * 0.001)
        * np.where((np.arange(STEPS) >= at) & (number < count), factor, 1.0)
        for number in range(4)
    }
    for begin, end in ((0, 70), (70, STEPS)):
        rank = WrittenRank(tmp_path / "run")
        rank.monitor.set_start_step(0, begin)
        for step in range(begin, end):
            for name, norms in lines.items():
                rank.observe(np.full(300, norms[step] / 300**0.5), "actv", name, step - begin)
            rank.end_step()
        rank.stop()
    assert stays_from(lines["blocks.0"]) is None
    left = trainmon.diagnose(tmp_path / "run")["left_history"]
    assert (left is not None) == is_named
    if left:
        assert (left["step"], left["name"], left["lines"]) == (70, "blocks.0", count)
        logs = np.log10(lines["blocks.0"])
        apart = logs[70:78].mean() - logs[54:70].mean()
        assert left["apart"] == pytest.approx(10**apart, rel=1e-5)


@pytest.mark.parametrize(
    ("of_start", "slope", "is_named"),
    [(0.82, 0.0, True), (0.95, 0.0, False), (1.0, -0.03, False), (1.0, 0.0, False)],
)
def test_the_first_losses_of_a_start_are_compared_with_those_before(
    tmp_path, of_start, slope, is_named
):
    """As where the weight of a term begins anew: it is less, and then comes back. A loss that falls is none."""
    begin, steps = 90, 130
    random = np.random.default_rng(3)
    back = np.clip((np.arange(steps) - begin) / 200, 0, 1)
    factors = np.where(np.arange(steps) >= begin, of_start + (1 - of_start) * back, 1.0)
    falls = np.exp(slope * np.maximum(0, np.arange(steps) - 60))
    losses = 20 * factors * falls * np.exp(random.normal(size=steps) * 0.07)
    for first, end in ((0, begin), (begin, steps)):
        rank = WrittenRank(tmp_path / "run")
        rank.monitor.set_start_step(0, first)
        for step in range(first, end):
            rank.monitor.add_scalar("loss", losses[step], step - first)
            rank.observe(np.full(3, np.exp(random.normal() * 0.1)), "actv", "w", step - first)
            rank.end_step()
        rank.stop()
    left = trainmon.diagnose(tmp_path / "run")["left_history"]
    assert (left is not None) == is_named
    if left:
        assert (left["step"], left["name"], left["restart"]) == (begin, "loss", 1)


def test_a_loss_below_zero_shifts_by_a_difference(tmp_path):
    out = tmp_path / "run"
    random = np.random.default_rng(3)
    losses = random.normal(size=(2, STEPS)) * 0.3 - 0.2
    losses[:, BEGIN:] += 2
    ranks = [WrittenRank(out, number, 2) for number in range(2)]
    for step in range(STEPS):
        for number, rank in enumerate(ranks):
            rank.observe(np.full(3, 1 + random.random() / 10), "grad_reduced", "w", step)
            rank.monitor.add_scalar("loss", losses[number, step])
            rank.end_step()
    for rank in ranks:
        rank.stop()
    left = trainmon.diagnose(out)["left_history"]
    assert (left["step"], left["ranks"], left["name"], left["measure"]) == (
        BEGIN,
        [0, 1],
        "loss",
        "value",
    )
    values = losses[left["rank"]]
    apart = values[BEGIN : BEGIN + 8].mean() - values[BEGIN - 16 : BEGIN].mean()
    assert left["apart"] == pytest.approx(apart)
    assert (left["norm"], left["before"]) == pytest.approx(
        (values[BEGIN], np.median(values[BEGIN - 16 : BEGIN]))
    )
    said = command("diagnose", out).stdout
    assert f"is off that of the 16 before by {apart:.3g}\n" in said and "its value is " in said


def test_the_loss_of_the_step_is_said_beside_a_tensor(tmp_path):
    out = tmp_path / "run"
    rank, random = WrittenRank(out), noisy()
    losses = []
    for step in range(STEPS):
        times = 3.0 if step >= BEGIN else 1.0
        rank.observe(np.full(3, times * next(random)), "grad_reduced", "w", step)
        losses.append(times * next(random))
        rank.monitor.add_scalar("loss", losses[-1])
        rank.end_step()
    rank.stop()
    left = trainmon.diagnose(out)["left_history"]
    assert (left["step"], left["kind"], left["name"]) == (BEGIN, "grad_reduced", "w")
    before = np.exp(np.median(np.log(losses[BEGIN - 16 : BEGIN])))
    loss = left["loss"]
    assert (loss["name"], loss["ranks"]) == ("loss", [0])
    assert (loss["value"], loss["before"]) == pytest.approx((losses[BEGIN], before))
    said = f"logged loss too, on rank 0: {loss['value']:.3g}, the median before is {before:.3g}"
    assert "  " + said in command("diagnose", out, check=0).stdout.splitlines()


def test_the_norm_of_all_gradients_tells_where_no_tensor_does(tmp_path):
    out = tmp_path / "run"
    rank, random = WrittenRank(out), noisy()
    norms = []
    for step in range(STEPS):
        # Each is too noisy to tell by itself.
        each = [next(random) ** 8 * (1.8 if step >= BEGIN else 1.0) for _ in range(64)]
        for number, norm in enumerate(each):
            rank.observe(np.full(3, norm / 3**0.5), "grad_reduced", f"w{number}", step)
        norms.append(np.linalg.norm(each))
        rank.end_step()
    rank.stop()
    left = trainmon.diagnose(out)["left_history"]
    apart, errors = means_apart(norms, BEGIN)
    assert errors > 7.5
    assert (left["step"], left["kind"], left["name"]) == (BEGIN, "grad_reduced", "")
    assert (left["element"], left["lines"], left["others"]) == ("all tensors", 1, [])
    assert left["norm"] == pytest.approx(norms[BEGIN])
    assert left["apart"] == pytest.approx(np.exp(apart))
    place = f"  step {BEGIN}, rank 0, grad_reduced all tensors"
    said = command("diagnose", out, check=0)
    assert place in said.stdout.splitlines()
    (line,) = (line for line in said.stderr.splitlines() if line.startswith("next: "))
    shown = command(*shlex.split(line)[2:], check=0).stdout.splitlines()
    assert [float(row.split()[1]) for row in shown[1:]] == pytest.approx(
        norms[BEGIN - 8 : BEGIN + 8], rel=1e-4
    )
    page, _ = report(out, tmp_path / "a.html", check=0)
    assert page.report["diagnosis"]["left_history"] == left


def test_a_loss_that_is_soon_learned_again_is_named_on_all_ranks_that_show_it(tmp_path):
    """Rank 0 shows it less, which would not tell by itself."""
    out = tmp_path / "run"
    random = noisy()
    ranks = [WrittenRank(out, number, 2) for number in range(2)]
    losses = {0: [], 1: []}
    for step in range(STEPS):
        for number, rank in enumerate(ranks):
            rank.observe(np.full(3, next(random)), "grad_reduced", "w", step)
            far = (0.6 if number == 1 else 0.4) * np.exp(-(step - BEGIN) / 4)
            noise = next(random) ** (1 if number == 1 else 2)
            losses[number].append(noise * np.exp(far if step >= BEGIN else 0.0))
            rank.monitor.add_scalar("loss", losses[number][-1])
            rank.end_step()
    for rank in ranks:
        rank.stop()
    logs = np.log(losses[1])
    before, after = logs[BEGIN - 16 : BEGIN], logs[BEGIN : BEGIN + 4]
    apart = after.mean() - before.mean()
    assert apart > 6 * before.std(ddof=1) * np.sqrt(1 / 16 + 1 / 4)
    assert means_apart(losses[1], BEGIN)[1] < 7.5
    left = trainmon.diagnose(out)["left_history"]
    assert (left["step"], left["rank"], left["ranks"]) == (BEGIN, 1, [0, 1])
    assert left["apart"] == pytest.approx(np.exp(apart))
    assert "the mean of 4 values from here on is off" in command("diagnose", out, check=0).stdout
