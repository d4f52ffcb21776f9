# The bars: what must hold, and in which line of which benchmark it shows.
"""A bar looks at the one line of its program whose name, in lower case and with `|` at its end, holds
all its words.
"""

import dataclasses


@dataclasses.dataclass(frozen=True)
class Bar:
    id: str
    what: str
    program: str
    words: tuple[str, ...]
    field: str  # of the line; "times": how often better than the yardstick; "above": by how much
    sign: str  # "<=" or ">="
    bound: float
    unit: str = ""
    worst: bool = False  # several lines fit: the worst of them counts

    def line(self, lines: list[dict]) -> dict | None:
        """None when nothing fits; ValueError when several lines do, and one should."""
        found = [
            line
            for line in lines
            if line["program"] == self.program
            and all(word in line["name"].lower() + "|" for word in self.words)
        ]
        if self.worst and found:
            choose = max if self.sign == "<=" else min
            return choose(found, key=self.value)
        if len(found) > 1:
            names = ", ".join(line["name"] for line in found)
            raise ValueError(f"{self.id} ({', '.join(self.words)}) fits several lines: {names}")
        return found[0] if found else None

    def value(self, line: dict) -> float:
        if self.field == "times":
            return 1 / line["ratio"] if line["lower_is_better"] else line["ratio"]
        if self.field == "above":
            return line["figure"] - line["yardstick_figure"]
        return line[self.field]

    def met(self, line: dict) -> bool:
        value = self.value(line)  # NaN meets nothing
        return value <= self.bound if self.sign == "<=" else value >= self.bound


def _shares(number, what, words, bounds):
    """Shares of the read limit, per level."""
    return [
        Bar(number, f"{what}, {level}", "stats", (*words, level), "ratio", ">=", bound)
        for level, bound in bounds.items()
    ]


def _overhead(number, what, words, bound, field="upper", sign="<="):
    return Bar(number, what, "overhead", words, field, sign, bound, "%")


GPT2 = "gpt-2 gradients (148)"
BARS = [
    *_shares("P1", "float32, 1 thread, of the read limit", ("float32, gradient, 768 mib, 1 thread",),
             {"avx512": 0.88, "avx2": 0.88}),
    *_shares("P2", "bfloat16, 1 thread, of the read limit", ("bfloat16, gradient, 768 mib, 1 thread",),
             {"avx512": 0.82, "avx2": 0.72}),
    *_shares("P2", "float16, 1 thread, of the read limit", (" float16, gradient, 768 mib, 1 thread",),
             {"avx512": 0.82, "avx2": 0.72}),
    *_shares("P3", "float32, 2 threads, of the read limit", ("float32, gradient, 768 mib, 2 threads",),
             {"avx512": 0.88}),
    *_shares("P3", "bfloat16, 2 threads, of the read limit", ("bfloat16, gradient, 768 mib, 2 threads",),
             {"avx512": 0.80}),
    *_shares("P4", "float32 in the second-level cache", ("float32, gradient, 512 kib",),
             {"avx512": 0.30, "avx2": 0.16}),
    Bar("P5", "GPT-2's gradients, float32, beside the peer", "peer_stats",
        (GPT2, "float32", "beside peer"), "times", ">=", 30, "times"),
    Bar("P5", "the same in bfloat16", "peer_stats",
        (GPT2, "bfloat16", "beside peer"), "times", ">=", 50, "times"),
    Bar("P6", "200 small tensors, float32, beside the peer", "peer_stats",
        ("200 small", "float32", "beside peer"), "times", ">=", 100, "times"),
    Bar("P6", "the same in bfloat16", "peer_stats",
        ("200 small", "bfloat16", "beside peer"), "times", ">=", 100, "times"),
    Bar("P7", "GPT-2's gradients, float32, beside plain torch", "peer_stats",
        (GPT2, "float32", "beside torch"), "times", ">=", 12, "times"),
    Bar("P7", "200 small tensors, float32, beside plain torch", "peer_stats",
        ("200 small", "float32", "beside torch"), "times", ">=", 80, "times"),
    _overhead("P8", "a step with gradients watched, more than bare", ("overhead: gradients|",),
              1.0, "figure"),
    Bar("P8", "the same as a share of the peer's", "peer", ("beside the peer: gradients|",),
        "ratio", "<=", 1 / 12),
    Bar("P9", "one tensor of a sweep, above an empty hook", "hooks", ("sweep|",),
        "above", "<=", 200, "ns"),
    Bar("P9", "forward hook, above an empty one", "hooks", ("forward hook, value of one output|",),
        "above", "<=", 500, "ns"),
    Bar("P9", "output gradient hook, above an empty one", "hooks", ("output gradient hook|",),
        "above", "<=", 1500, "ns"),
    _overhead("P10", "attached but off: lower end of the interval", ("switched off",), 0.0,
              "lower"),
    Bar("P11", "12,000 scalars, training thread", "sinks", ("on the training thread",),
        "figure", "<=", 0.050, "ms"),
    Bar("P11", "12,000 scalars, CPU of the writer, log", "sinks", ("cpu of the writer, log",),
        "figure", "<=", 1.5, "ms"),
    Bar("P11", "the same, csv", "sinks", ("cpu of the writer, csv",), "figure", "<=", 1.5, "ms"),
    Bar("P11", "12,000 scalars as csv, beside the peer's writer", "sinks",
        ("12,000 scalars: csv",), "times", ">=", 40, "times"),
    Bar("P12", "norm of 1e8 elements, relative error", "accuracy", ("norm of",),
        "figure", "<=", 2e-8, worst=True),
    Bar("P13", "mean of float32, error by the mean absolute value", "accuracy", ("mean of float32",),
        "figure", "<=", 1e-15, worst=True),
    Bar("P14", "memory added, of its budget, all kinds", "memory",
        ("all kinds with input gradients",), "ratio", "<=", 1.0),
    Bar("P15", "Parquet, lossless, all statistics", "parquet", ("11 statistics, lossless",),
        "figure", "<=", 2.5, "bytes a scalar"),
    Bar("P15", "the same, below our csv", "parquet", ("11 statistics, lossless",),
        "times", ">=", 7, "times"),
    *[Bar("read", f"{name}{of} of a tiny model's run, beside DuckDB", "reading",
          (f"{name}{of}, beside duckdb",), "ratio", "<=", 3, "times")
      for name in ("first-bad", "top", "count by kind", "grouped query", "doctor")
      for of in ("", ", compacted")],
    Bar("read", "one statistic of a kind, beside pyarrow.dataset", "reading",
        ("one statistic",), "ratio", "<=", 2, "times", worst=True),
    *[Bar("read", f"decode of all columns{of}, million rows a second a core", "reading",
          (f"decode of all columns{of}|",), "figure", ">=", 8, "million rows/s")
      for of in ("", ", compacted")],
    *[Bar("read", f"time of two threads that decode, of one's{of}", "reading",
          (f"decode by two threads{of}|",), "ratio", "<=", 1 / 1.7, "times")
      for of in ("", ", compacted")],
    Bar("read", "compare of two such runs", "reading", ("compare of two runs",), "figure", "<=", 2, "s",
        worst=True),
    Bar("read", "export to Parquet", "reading", ("export to parquet",), "figure", "<=", 3, "s"),
    Bar("read", "memory of a reader, the largest", "reading", ("memory of",), "figure", "<=", 256,
        "MB", worst=True),
    *[Bar("report", f"{what} of a report of a million rows", "report", (f"one run: {name}",), "figure", "<=", bound, unit)
      for what, name, bound, unit in (
          ("size", "size of the page", 10, "MB"), ("CPU", "making the page", 3, "s"),
          ("memory", "memory of making", 256, "MB"), ("memory of the page", "memory of the page", 300, "MB"), ("first paint", "first paint", 1000, "ms"),
          ("slowest zoom", "zoom, slowest", 100, "ms"))],
    Bar("serve", "CPU of `serve` at a step a second, a million rows", "serve", ("share of a core",), "figure", "<=", 5, "%"),
    Bar("serve", "memory of `serve`", "serve", ("memory of the server",), "figure", "<=", 256, "MB"),
    *[Bar("checks", f"{dtype} with checks, from memory, of the state alone, {level}", "checks",
          (f"checks, {dtype}, 256 mib, {level}|",), "ratio", ">=", bound)
      for dtype in ("float32", "bfloat16") for level, bound in (("avx512", 0.90), ("avx2", 0.80))],
    _overhead("step", "gradients and moments", ("gradients, moments",), 2.0),
    _overhead("step", "activations with output gradients", ("activations with output",), 3.0),
    _overhead("step", "everything with input gradients", ("all kinds with input",), 6.0),
]  # fmt: skip
