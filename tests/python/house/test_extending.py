# The recipe of docs/extending.md for a statistic that the state does not hold, followed in a copy of the sources.
import concurrent.futures
import os
import pathlib
import shutil
import subprocess

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[3]

# What the recipe says to change for a count of negative elements: file -> (old text, new text).
EDITS = {
    "include/trainmon/stat.h": [
        (
            "  std::int64_t subnormals = 0;\n",
            "  std::int64_t subnormals = 0;\n  std::int64_t negatives = 0;\n",
        ),
        (
            '    StateField{"exponent", &RowState::exponent, MergeLaw::exponent, 0, 20},\n',
            '    StateField{"exponent", &RowState::exponent, MergeLaw::exponent, 0, 20},\n'
            '    StateField{"negatives", &RowState::negatives, MergeLaw::add, 0, 22},\n',
        ),
        (
            "  count,\n};\ninline constexpr std::size_t kStatCount = 11;",
            "  count,\n  negatives,\n};\ninline constexpr std::size_t kStatCount = 12;",
        ),
    ],
    "src/model/stat.cpp": [
        (
            '"Inf counted", "0",\n     reads("count")},\n}};',
            '"Inf counted", "0",\n     reads("count")},\n'
            '    {Stat::negatives, "negatives", "number of x < 0", "int64", "of the others",\n'
            '     "-Inf counted", "0", reads("negatives")},\n}};',
        ),
        (
            "    case Stat::nans:\n      return as_double(state.nans);\n",
            "    case Stat::negatives:\n      return as_double(state.negatives);\n"
            "    case Stat::nans:\n      return as_double(state.nans);\n",
        ),
    ],
    "src/stats/cpu/block.cpp": [
        (
            "RowState measure_block(DType dtype, const void* data, std::int64_t n, const Thresholds& eps,\n"
            "                       const Kernels& kernels) {\n",
            "static RowState measure_others(DType dtype, const void* data, std::int64_t n,\n"
            "                               const Thresholds& eps, const Kernels& kernels) {\n",
        ),
        (
            "RowState measure_checked_block(",
            """RowState measure_block(DType dtype, const void* data, std::int64_t n, const Thresholds& eps,
                       const Kernels& kernels) {
  RowState state = measure_others(dtype, data, n, eps, kernels);
  double values[kBlock];
  widen(dtype, data, n, values);
  for (std::int64_t i = 0; i < n; ++i) state.negatives += values[i] < 0.0;
  return state;
}

RowState measure_checked_block(""",
        ),
    ],
}
PROGRAM = r"""
#include <cstdio>
#include <cstdlib>
#include <vector>

#include "model/merge.h"
#include "model/probe_payload.h"
#include "read/log_decode.h"
#include "sinks/log_encode.h"
#include "stats/cpu/check_kernels.h"
#include "stats/cpu/kernels.h"
#include "stats/cpu/probe_kernels.h"
#include "stats/divide.h"

using namespace trainmon;
namespace trainmon::cpu {
const std::int64_t kPrefetchBytes = 0;
const Kernels& kernels() {
  return kBaselineKernels;
}
const ProbeKernels& probe_kernels() {
  return kBaselineProbeKernels;
}
const CheckKernels& check_kernels() {
  return kBaselineCheckKernels;
}
}  // namespace trainmon::cpu

struct NoSeries : SeriesTable {
  const Series& at(SeriesId) const override { std::abort(); }
  std::size_t size() const override { return 0; }
};

void check(bool holds, const char* what) {
  if (holds) return;
  std::printf("not so: %s\n", what);
  std::exit(1);
}

int main() {
  std::vector<float> numbers(10000);
  for (std::size_t i = 0; i < numbers.size(); ++i) numbers[i] = i % 5 == 0 ? -1.0f : 2.0f;
  const std::int64_t size = 10000;
  TensorView view;
  view.data = numbers.data();
  view.ndim = 1;
  view.sizes = &size;
  RowState state = measure(view);
  check(state.negatives == 2000, "it is measured");
  check(derive(*stat_from_name("negatives"), state) == 2000.0, "it is a statistic");

  RowState sum = state;
  merge(sum, state);
  check(sum.negatives == 4000, "it is merged");
  RowState empty;
  merge(empty, state);
  check(same_bits(empty, state), "it is merged into nothing");
  multiply(sum, 3);
  check(sum.negatives == 12000, "it is multiplied");
  divide(sum, 2.0);
  check(sum.negatives == 12000, "it does not depend on a scale");
  RowState other = state;
  other.negatives = 7;
  check(!same_bits(state, other), "it is compared");

  RecordBatch batch;
  batch.rows.resize(2);
  batch.rows[0].state = state;
  batch.rows[1].state = sum;
  std::string frame;
  log_format::append_batch_frame(frame, 0, batch, NoSeries(), {});
  FrameBounds bounds;
  std::string why;
  const auto read =
      decode_batch(std::string_view(frame).substr(log_format::kFrameHeaderBytes), bounds, why);
  check(read && read->rows.size() == 2, "a log is read");
  check(same_bits(read->rows[0].state, state) && same_bits(read->rows[1].state, sum),
        "it is in the log");
  RecordBatch part;
  FrameBounds again;
  check(decode_batch(std::string_view(frame).substr(log_format::kFrameHeaderBytes), part, again, why,
                     columns_of(*stat_from_name("negatives"))),
        "a part of a log is read");
  check(part.rows[1].state.negatives == 12000, "readers decode what it is made of");

  Probe probe;
  probe.state = state;
  const std::vector<std::byte> payload = probe_payload({}, 0, probe);
  const auto probed = read_probe_payload(payload);
  check(probed && same_bits(probed->probe.state, state), "it is in the payload of a probe");
  std::puts("all of it holds");
}
"""
SOURCES = [
    "base/crc32c",
    "base/text",
    "model/dtype",
    "model/probe_payload",
    "model/record",
    "model/stat",
    "stats/layout",
    "stats/measure",
    "stats/cpu/block",
    "stats/cpu/check_block",
    "stats/cpu/check_factors",
    "stats/cpu/check_kernels_baseline",
    "stats/cpu/float32",
    "stats/cpu/gather",
    "stats/cpu/kernels_baseline",
    "stats/cpu/probe_kernels_baseline",
    "sinks/compress",
    "sinks/log_columns",
    "sinks/log_encode",
    "sinks/log_format",
    "read/columns",
    "read/log_bounds",
    "read/log_columns",
    "read/log_decode",
]


def run(command, **kwargs):
    done = subprocess.run(command, capture_output=True, text=True, **kwargs)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_a_new_exact_statistic_takes_three_files(tmp_path):
    compiler = os.environ.get("CXX") or shutil.which("c++")
    if compiler is None:
        pytest.fail("no C++ compiler")
    recipe = (ROOT / "docs/extending.md").read_text().split("## A statistic")[1].split("\n## ")[0]
    for folder in ("include", "src"):
        shutil.copytree(ROOT / folder, tmp_path / folder)
    assert len(EDITS) == 3
    for name, edits in EDITS.items():
        assert f"`{name}`" in recipe
        text = (tmp_path / name).read_text()
        for old, new in edits:
            assert text.count(old) == 1, (name, old)
            text = text.replace(old, new)
        (tmp_path / name).write_text(text)
    (tmp_path / "src/program.cpp").write_text(PROGRAM)

    def compiled(source):
        to = tmp_path / (source.replace("/", "_") + ".o")
        flags = ["-std=c++20", "-O0", "-pthread", "-Werror=switch", "-Wall", "-Iinclude", "-Isrc"]
        run([compiler, *flags, "-c", f"src/{source}.cpp", "-o", str(to)], cwd=tmp_path)
        return str(to)

    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        objects = list(pool.map(compiled, [*SOURCES, "program"]))
    run([compiler, "-pthread", *objects, "-lzstd", "-o", "program"], cwd=tmp_path)
    assert run(["./program"], cwd=tmp_path) == "all of it holds\n"
