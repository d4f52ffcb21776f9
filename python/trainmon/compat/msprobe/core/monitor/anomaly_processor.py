# The sorter of anomaly.json files: python -m trainmon.compat.msprobe.core.monitor.anomaly_processor.
from __future__ import annotations

import argparse
import ast
import os
import sys

from trainmon import _core
from trainmon.base.names import visible

_OUTPUT = "anomaly_analyse.json"


def _steps(text: str) -> list[int]:
    try:
        steps = ast.literal_eval(text)
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        steps = None
    if not isinstance(steps, list) or not all(type(step) is int for step in steps):
        raise argparse.ArgumentTypeError(f"{text!r} is no list of steps such as [1,2]")
    return steps


def _count(text: str) -> int:
    count = int(text)
    if count <= 0:
        raise argparse.ArgumentTypeError(f"{count} is not greater than 0")
    return count


def _arguments(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="anomaly_processor",
        description="Sorts the anomalies of all ranks and keeps the first ones.",
    )
    parser.add_argument(
        "-d", "--data_path", required=True, help="directory with */anomaly.json (anomaly_detected)"
    )
    parser.add_argument(
        "-o", "--out_path", default="", help=f"directory for {_OUTPUT}; default: the data path"
    )
    parser.add_argument(
        "-k", "--topk", type=_count, default=8, help="how many anomalies to keep (default 8)"
    )
    parser.add_argument(
        "-s", "--step_list", "--step", type=_steps, default=[],
        help='only these steps, as "[1,2]"; [] (the default) means all',
    )  # fmt: skip
    return parser.parse_args(arguments)


def main(arguments: list[str] | None = None) -> int:
    wanted = _arguments(arguments)
    out = wanted.out_path or wanted.data_path
    try:
        os.makedirs(out, mode=0o750, exist_ok=True)
        found = _core.anomalies(
            os.fsencode(wanted.data_path),
            wanted.step_list,
            wanted.topk,
            os.fsencode(os.path.join(out, _OUTPUT)),
        )
    except (OSError, RuntimeError) as error:
        print(f"anomaly_processor: {error}", file=sys.stderr)
        return 1
    for file, what in found["damage"]:
        print(f"anomaly_processor: not used: {file!a}: {what!a}", file=sys.stderr)
    print(f"{found['total']} anomalies in {found['files']} files, the first of them:")
    for number, entry in enumerate(found["entries"], 1):
        print(f"{number}. {visible(entry['message'])}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
