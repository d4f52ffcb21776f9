# Every key of ColossalAIMonitor's configuration, and what is said of bad ones.
import pytest
from torch import nn

import compat_colossalai_case as case
import marks
from compat_colossalai_case import Net, assert_files, made, net, read, train
from trainmon.compat.colossalai import ColossalAIMonitor


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize(
    "asked, columns",
    [
        (["norm"], ["norm"]),
        (["min", "norm"], ["norm", "min"]),
        (["min", "max", "mean", "norm", "max"], case.STATS),
        (["front", "max"], ["norm", "max"]),
    ],
)
def test_stats(asked, columns, tmp_path):
    monitor, model = made(stats=asked), net()
    seen = train(monitor, model)
    monitor.stop()
    local, reduced = read(tmp_path, columns)
    case.assert_rows(local, seen.local)
    case.assert_rows(reduced, seen.reduced)


@pytest.mark.parametrize(
    "mode", ["none", "dp", "tp", "pp", "zero", "zero1", "zero2", "zero3", "auto"]
)
def test_parallel_mode(mode, tmp_path):
    monitor, model = made(parallel_mode=mode, reduce_shards=True), net()
    assert monitor.parallel_mode == mode
    seen = train(monitor, model)
    monitor.stop()
    assert_files(tmp_path, seen)


def test_param_list(tmp_path, caplog):
    monitor, model = made(param_list=["first.weight", "second.bias", "third.weight"]), net()
    train(monitor, model)
    monitor.stop()
    for rows in read(tmp_path):
        assert {r[2] for r in rows} == {"first.weight", "second.bias"}
    assert "'third.weight'" in caplog.text and "'first.weight'" not in caplog.text
    assert "nothing is watched" not in caplog.text
    monitor = made(param_list=["frozen"])
    train(monitor, net())
    monitor.stop()
    assert caplog.text.count("nothing is watched") == 1


def test_write_interval(tmp_path):
    monitor, model = made(write_interval=3), net()
    seen = train(monitor, model, steps=5)
    monitor._watch._core.settle(10.0)
    for rows in read(tmp_path):
        assert {0, 1, 2} <= {r[0] for r in rows}
    monitor.stop()
    assert_files(tmp_path, seen)


def test_output_files(tmp_path):
    names = {"output_dir": "deep/er", "output_file_local": "a.csv", "output_file_global": "b/c.csv"}
    monitor, model = made(**names), net()
    seen = train(monitor, model)
    monitor.stop()
    assert monitor.output_file_local == str(tmp_path / "deep/er/a.csv")
    case.assert_rows(case.rows(tmp_path / "deep/er/a.csv"), seen.local)
    case.assert_rows(case.rows(tmp_path / "deep/er/b/c.csv"), seen.reduced)


def test_an_absolute_output_dir(tmp_path):
    monitor, model = made(output_dir=str(tmp_path / "there")), net()
    train(monitor, model)
    monitor.stop()
    assert len(read(tmp_path / "there")[1]) == 12


def test_unknown_keys_are_said_and_ignored(tmp_path, caplog):
    monitor = made(front=True, write_intervall=3)
    assert "'front' is not known" in caplog.text
    assert "did you mean 'write_interval'" in caplog.text
    assert monitor.write_interval == 1


@pytest.mark.parametrize(
    "config, words",
    [
        ({"stats": ["norm", "median"]}, ["stats", "median", "norm, mean, max, min"]),
        ({"stats": []}, ["stats"]),
        ({"stats": "norm"}, ["stats", "'norm'"]),
        ({"stats": [1]}, ["stats", "1"]),
        ({"parallel_mode": "zero4"}, ["parallel_mode", "zero4", "zero3"]),
        ({"parallel_mode": 3}, ["parallel_mode"]),
        ({"param_list": "first.weight"}, ["param_list", "first.weight"]),
        ({"param_list": [3]}, ["param_list"]),
        ({"write_interval": 0}, ["write_interval", "0"]),
        ({"write_interval": 1.5}, ["write_interval", "1.5"]),
        ({"write_interval": True}, ["write_interval"]),
        ({"write_interval": 2**60}, ["write_interval"]),
        ({"output_dir": 1}, ["output_dir"]),
        ({"output_dir": ""}, ["output_dir"]),
        ({"output_dir": "\ud800"}, ["output_dir", "UTF-8"]),
        ({"output_dir": "x" * 5000}, ["output_dir", "at most 4095 bytes", "5002 characters"]),
        ({"output_file_local": "x" * 300}, ["output_file_local", "255"]),
        ({"output_file_local": None}, ["output_file_local"]),
        ({"output_file_global": "a\0b"}, ["output_file_global"]),
        ({"output_file_local": "x.csv", "output_file_global": "./x.csv"}, ["two files", "x.csv"]),
        ({"reduce_shards": 1}, ["reduce_shards"]),
        ({"stats": ["a"], "write_interval": -1}, ["stats", "write_interval", "-1"]),
    ],
)
def test_bad_values_are_named_at_the_start(config, words):
    with pytest.raises(ValueError) as error:
        made(**config)
    assert all(word in str(error.value) for word in words)


def test_bad_files_are_named_at_the_start(tmp_path):
    with pytest.raises(FileNotFoundError, match="nowhere.json"):
        ColossalAIMonitor("nowhere.json")
    with pytest.raises(FileNotFoundError, match="nowhere.json"):
        ColossalAIMonitor(tmp_path / "nowhere.json")
    for text, error in (("{", ValueError), ("[" * 100000, ValueError), ("[1]", TypeError)):
        (tmp_path / "bad.json").write_text(text)
        with pytest.raises(error, match="bad.json"):
            ColossalAIMonitor("bad.json")


@pytest.mark.parametrize("path", [True, 7, 1.5, [], {}, b"monitor_config.json"])
def test_what_is_no_path_is_not_opened(path):
    with pytest.raises(TypeError, match="config_path"):
        ColossalAIMonitor(path)


def test_a_folder_is_no_configuration(tmp_path):
    with pytest.raises(IsADirectoryError, match=f"config_path.*{tmp_path.name} is a folder"):
        ColossalAIMonitor(tmp_path)


def test_what_cannot_be_watched_is_named():
    with pytest.raises(TypeError, match="dict"):
        ColossalAIMonitor().monitor({})
    with pytest.raises(ValueError, match="no parameters"):
        ColossalAIMonitor().monitor(nn.ReLU())
    before = marks.of_objects(nn.ReLU(), [])
    with pytest.raises(ValueError):
        ColossalAIMonitor().monitor(nn.ReLU())
    assert marks.of_objects(nn.ReLU(), []) == before


def test_files_that_cannot_be_made_or_are_others_are_named(tmp_path):
    (tmp_path / "taken").write_text("")
    with pytest.raises(RuntimeError, match="taken"):
        made(output_dir="taken").monitor(net())
    other = tmp_path / "grad_stats_local.csv"
    other.write_bytes(b"step,rank,param_name,norm\r\n0,0,a,1.0\r\n")
    with pytest.raises(RuntimeError, match="grad_stats_local.csv.*norm,mean,max,min"):
        made().monitor(net())
    assert other.read_bytes() == b"step,rank,param_name,norm\r\n0,0,a,1.0\r\n"
    other.write_bytes(b"step,rank,param_name,norm,mean,max,min\n0,0,a,1.0,1,1,1\n")
    with pytest.raises(RuntimeError, match="grad_stats_local.csv.*lines end with LF, not CRLF"):
        made().monitor(net())
    assert marks.of_objects(net(), []) == marks.of_objects(Net(), [])


def test_a_file_of_settings_is_a_file_of_a_bounded_size(tmp_path):
    (tmp_path / "large").write_text(" " * 2**20 + "{}")
    cases = {"/dev/zero": "is not a file", str(tmp_path / "large"): "is larger than 1 MiB"}
    for path, said in cases.items():
        with pytest.raises(OSError, match=said):
            ColossalAIMonitor(path)
