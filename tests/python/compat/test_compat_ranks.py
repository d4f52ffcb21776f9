# TrainerMon on two ranks: groups, ranks, structure, collectives, output that is continued.
import json
import math

import pytest

import compat_case as case
import launch


@pytest.fixture(scope="module")
def out(tmp_path_factory):
    folder = tmp_path_factory.mktemp("ranks")
    launch.run("compat_ranks_run.py", folder, ranks=2, timeout=120)
    return folder


@pytest.fixture(scope="module")
def told(out):
    return [json.loads((out / f"{rank}.json").read_text()) for rank in (0, 1)]


def folder(out, name, rank):
    found = case.folders(out / name, rank)
    assert len(found) == 1, found
    return found[0]


def norms(out, name, rank, prefix, step=0):
    table = case.rows(folder(out, name, rank), prefix, step)
    assert not table["name"].duplicated().any()
    return {n.removeprefix("module."): v for n, v in zip(table["name"], table["norm"])}


def squashed(values):
    return {name.removeprefix("encoder."): value for name, value in values.items()}


@pytest.mark.parametrize("rank", [0, 1])
def test_gradients_before_and_after_their_reduction(rank, out, told):
    alone, averaged = map(squashed, told[rank]["ddp"]["gradients"])
    assert norms(out, "ddp", rank, "grad_unreduced") == pytest.approx(alone, abs=1e-6)
    assert norms(out, "ddp", rank, "grad_reduced") == pytest.approx(averaged, abs=1e-6)
    assert any(abs(alone[n] - averaged[n]) > 1e-3 for n in alone)
    value = norms(out, "ddp", rank, "param_updated")["head.bias"]
    assert value == norms(out, "ddp", 1 - rank, "param_updated")["head.bias"]
    for prefix in ("actv", "actv_grad"):
        assert norms(out, "ddp", rank, prefix) != norms(out, "ddp", 1 - rank, prefix)


def test_module_ranks(out, told):
    assert case.folders(out / "module_ranks", rank=0) == []
    assert norms(out, "module_ranks", 1, "grad_reduced")
    assert told[0]["module_ranks"]["hooks"][0] == 0 < told[1]["module_ranks"]["hooks"][0]


def test_a_monitor_made_before_the_process_group(out, told):
    assert [told[rank]["early"] for rank in (0, 1)] == [
        {"rank": rank, "pp": rank, "mates": [0, 1]} for rank in (0, 1)
    ]
    assert case.folders(out / "early", rank=0) == []
    assert norms(out, "early", 1, "grad_reduced")


def test_process_group_is_the_pipeline(out, told):
    assert [t["ddp"]["pp"] for t in told] == [0, 1]  # by default the rank
    assert [t["ddp"]["mates"] for t in told] == [[0, 1], [0, 1]]
    assert [t["process_group"]["pp"] for t in told] == [0, 0]
    for rank in (0, 1):
        for name, stage, mates in (("alert", rank, [0, 1]), ("process_group", 0, [rank])):
            path = out / name / f"anomaly_detected/rank{rank}/anomaly.json"
            events = json.loads(path.read_text())
            assert events and all(
                (e["rank"], e["pp_stage"], e["group_mates"]) == (rank, stage, mates)
                for e in events.values()
            )


def test_dp_group_leaves_reduced_gradients_to_its_first_rank(out):
    assert norms(out, "dp_group", 0, "grad_reduced")
    assert not [n for n in case.csvs(folder(out, "dp_group", 1)) if "_reduced" in n]
    for prefix in ("grad_unreduced", "param_origin", "param_updated"):
        names = [set(norms(out, "dp_group", rank, prefix)) for rank in (0, 1)]
        assert names[0] == names[1] and len(names[0]) == 10


def test_tp_group_leaves_what_is_not_split_to_its_first_rank(out):
    assert len(norms(out, "tp_group", 0, "grad_reduced")) == 10
    assert set(norms(out, "tp_group", 1, "grad_reduced")) == {"head.weight"}
    assert len(norms(out, "tp_group", 1, "grad_unreduced")) == 10


def test_groups_by_position_are_in_the_order_of_the_manual(out):
    assert norms(out, "positional_groups", 0, "grad_reduced", 3)
    assert not [n for n in case.csvs(folder(out, "positional_groups", 1)) if "_reduced" in n]


def test_print_struct_ends_all_ranks(out, told):
    for name, ranks in (("print_struct", [0]), ("print_struct_of_all", [0, 1])):
        for rank in (0, 1):
            text = "exit after first monitor step when print model struct"
            assert told[rank][name]["ended"] == ["MonitorExit", text]
            path = out / name / f"module_struct/rank{rank}/module_struct.json"
            assert path.exists() == (rank in ranks)
            if rank in ranks:
                found = json.loads(path.read_text())
                assert found["0:layers.0.up"]["input_grad"]["0"] == "<class 'NoneType'>"
                size = "size=(5, 3), dtype=torch.float32"
                assert found["0:module.head"]["output"] == {"config": "tensor", "tensor": size}
        assert case.folders(out / name) == []


def others(out, name, rank, step=0):
    return case.rows(folder(out, name, rank), "other", step).set_index("name")


@pytest.mark.parametrize("rank", [0, 1])
def test_collectives_after_and_before(rank, out):
    for step in range(3):
        table = others(out, "cc", rank, step)
        assert list(table.columns) == [
            "vpp_stage", "step", "norm", "min", "max", "nans", "shape", "dtype",
        ]  # fmt: skip
        assert sorted(table.index) == ["all_reduce.post_0", "broadcast.post_0"]
        row = table.loc["all_reduce.post_0"]  # two calls: [3, 3] and [30, 30]
        assert row["norm"] == pytest.approx(math.sqrt(2 * 9 + 2 * 900), abs=1e-6)
        assert (row["min"], row["max"], row["nans"], row["step"]) == (3, 30, 0, step)
        assert table.loc["broadcast.post_0"]["max"] == 0
    table = others(out, "cc_pre", rank)
    assert len(table) == 4 - rank  # what a broadcast is received into holds nothing before
    before = table.loc["all_reduce.pre_0"]
    mine = rank + 1
    assert (before["min"], before["max"]) == (mine, 10 * mine)
    assert before["norm"] == pytest.approx(mine * math.sqrt(202), abs=1e-6)


def test_cc_codeline(out):
    table = others(out, "cc_line", 0)
    assert list(table.index) == ["all_reduce.post_0"] and table["max"].item() == 3
    assert case.csvs(folder(out, "cc_nowhere", 0)) == []
    assert not any(n.startswith("other") for n in case.csvs(folder(out, "cc_off", 0)))


def test_cc_log_only_tells_and_ends(out, told):
    for rank in (0, 1):
        text = "exit after first step when print cc stack"
        assert told[rank]["collectives"]["log"]["ended"] == ["MonitorExit", text]
        assert case.csvs(folder(out, "cc_log", rank)) == []
    (said,) = told[0]["collectives"]["said"]
    assert told[1]["collectives"]["said"] == []  # one rank tells
    calls = json.loads(said[said.index("{") :])
    assert sorted(calls) == ["all_reduce", "broadcast"] and len(calls["all_reduce"]) == 2
    first = calls["all_reduce"][0]
    assert "compat_ranks_run.py[" in first["stack"][0] and first["stack"][0].endswith("] talk")
    assert first["dtype"] == ["torch.float32"] and "0 1" in first["group"]


def test_nothing_of_the_collectives_stays(told):
    assert [t["collectives"]["left"] for t in told] == [[], []]


def test_append_output(out, told):
    old = out / "append/Dec03_21-34-40-rank0-00000000"
    lines = (old / "grad_reduced_0-0.csv").read_text().splitlines()
    assert sum(line.startswith("vpp_stage") for line in lines) == 1
    assert lines[1] == "0,old.weight,0,1.5,[1],torch.float32" and len(lines) == 2 + 10
    assert "grad_reduced_1-1.csv" in case.csvs(old)
    assert case.csvs(out / "append/Dec05_00-00-00-rank0-11111111") == []
    assert len(case.folders(out / "append", rank=0)) == 2
    new = folder(out, "append", 1)  # nothing to continue: a new one
    assert "grad_reduced_1-1.csv" in case.csvs(new)
    for rank in (0, 1):
        kinds = [kind for kind, _ in told[rank]["append_output"]["errors"]]
        assert kinds == ["RuntimeError", "ValueError"]
        assert all("append_output" in text for _, text in told[rank]["append_output"]["errors"])


@pytest.mark.parametrize("rank", [0, 1])
def test_fsdp2(rank, out, told):
    shards = squashed(told[rank]["fsdp2"]["shards"])
    assert norms(out, "fsdp2", rank, "grad_reduced") == pytest.approx(shards, abs=1e-6)
    alone = squashed(told[rank]["ddp"]["gradients"][0])  # whole, before the reduction
    assert norms(out, "fsdp2", rank, "grad_unreduced") == pytest.approx(alone, abs=1e-6)
    # Shards make up the whole weight.
    parts = [norms(out, "fsdp2", r, "param_origin") for r in (0, 1)]
    for name, whole in squashed(told[0]["fsdp2"]["whole"]).items():
        assert math.hypot(parts[0][name], parts[1][name]) == pytest.approx(whole, abs=1e-5)
    table = case.rows(folder(out, "fsdp2", rank), "actv").set_index("name")["norm"]
    assert table[".input"] == pytest.approx(case.batch(rank).norm().item(), abs=1e-5)
