// How long a sink takes for a step of many tensors, a plain write of the same bytes, and the
// training thread for handing the step over:
//   sinks_bench DIRECTORY ROWS ROUNDS   prints one JSON object: milliseconds per step, of the clock
//                                       and (cpu_) of the CPU
#include <time.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <deque>
#include <filesystem>
#include <random>
#include <string>
#include <vector>

#include "base/file.h"
#include "sinks/sinks.h"
#include "trainmon/monitor.h"

namespace {

using namespace trainmon;
using Clock = std::chrono::steady_clock;

class Listed : public SeriesTable {
 public:
  std::deque<Series> list;
  const Series& at(SeriesId id) const override { return list[id]; }
  std::size_t size() const override { return list.size(); }
};

double milliseconds_since(Clock::time_point start) {
  return std::chrono::duration<double, std::milli>(Clock::now() - start).count();
}

// Of the calling thread.
double cpu_milliseconds() {
  timespec now;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return 1e3 * static_cast<double>(now.tv_sec) + 1e-6 * static_cast<double>(now.tv_nsec);
}

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

std::vector<RecordBatch> steps(int rows, int rounds) {
  std::mt19937_64 random(1);
  std::normal_distribution<double> normal;
  std::vector<RecordBatch> batches(static_cast<std::size_t>(rounds));
  std::uint64_t seq = 0;
  for (std::size_t step = 0; step < batches.size(); ++step) {
    batches[step].number = step;
    for (int i = 0; i < rows; ++i) {
      Row row;
      row.key.series = static_cast<SeriesId>(i);
      row.key.window = static_cast<std::int64_t>(step);
      row.key.seq = ++seq;
      row.state.count = 65536;
      row.state.sum = static_cast<float>(normal(random));
      row.state.mean = row.state.sum / 65536.0;
      row.state.m2 = row.state.sum_sq = std::abs(normal(random));
      row.state.min = static_cast<float>(-std::abs(normal(random)));
      row.state.max = static_cast<float>(std::abs(normal(random)));
      row.state.absmax = std::max(row.state.max, -row.state.min);
      batches[step].rows.push_back(row);
    }
    Outcome taken;
    taken.window = taken.step = static_cast<std::int64_t>(step);
    taken.fate = Fate::taken;
    batches[step].outcomes.push_back(taken);
  }
  return batches;
}

struct Spent {
  double wall;
  double cpu;
};

Spent time_of(Sink& sink, const std::filesystem::path& directory, const Listed& series,
              const std::vector<RecordBatch>& batches) {
  std::filesystem::create_directories(directory);
  RunInfo run;
  run.directory = directory;
  sink.open(run, series);
  std::vector<double> walls;
  std::vector<double> cpus;
  for (const RecordBatch& batch : batches) {
    const auto start = Clock::now();
    const double cpu = cpu_milliseconds();
    sink.write(batch);
    sink.flush();
    cpus.push_back(cpu_milliseconds() - cpu);
    walls.push_back(milliseconds_since(start));
  }
  sink.close();
  return {median(walls), median(cpus)};
}

// What the training thread does for writing, whatever the sinks: it hands over the rows of a step.
double time_of_handing_over(const std::filesystem::path& out, const Listed& series, int rounds) {
  Config config;
  config.out = out;
  config.sinks = {"csv"};
  Monitor monitor(config, Identity{});
  monitor.add_optimizer(0);
  std::vector<SeriesId> ids;
  for (const Series& one : series.list) ids.push_back(monitor.add_series(one));
  const float values[] = {1, 2, 3, 4};
  const std::int64_t size = 4;
  TensorView view;
  view.data = values;
  view.ndim = 1;
  view.sizes = &size;
  std::vector<double> times;
  for (int step = 0; step < rounds; ++step) {
    for (const SeriesId id : ids) monitor.observe(id, view);
    monitor.begin_attempt(0);
    monitor.end_attempt(0, Fate::taken, 1.0);
    const auto start = Clock::now();
    monitor.seal(Moment::after_step);
    times.push_back(milliseconds_since(start));
    monitor.settle(10.0);
  }
  return median(times);
}

// The bytes of a log once more, in as many writes.
double time_of_plain_writes(const std::filesystem::path& log, const std::filesystem::path& copy,
                            std::size_t pieces) {
  const std::string bytes = read_file(log);
  const File file = create_file(copy);
  const std::size_t piece = bytes.size() / pieces;
  std::vector<double> times;
  for (std::size_t i = 0; i < pieces; ++i) {
    const auto start = Clock::now();
    write_at(file, static_cast<std::int64_t>(i * piece),
             std::string_view(bytes).substr(i * piece, piece), copy);
    times.push_back(milliseconds_since(start));
  }
  return median(times);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 4) return 2;
  const std::filesystem::path out = argv[1];
  const std::vector<RecordBatch> batches = steps(std::atoi(argv[2]), std::atoi(argv[3]));
  Listed series;
  for (std::size_t i = 0; i < batches.front().rows.size(); ++i) {
    Series one;
    one.kind = kind::kGradReduced;
    one.name = "layers." + std::to_string(i / 10) + ".part" + std::to_string(i % 10) + ".weight";
    series.list.push_back(one);
  }
  constexpr std::size_t kSegment = std::size_t{1} << 30;
  const Spent log = time_of(*make_log_sink(kSegment), out / "log", series, batches);
  const Spent csv = time_of(*make_csv_sink(kSegment), out / "csv", series, batches);
  const Spent sqlite = time_of(*make_sqlite_sink(), out / "sqlite", series, batches);
  const double plain =
      time_of_plain_writes(out / "log" / "log-000000.tmlog", out / "copy", batches.size());
  const double handed = time_of_handing_over(out / "run", series, std::atoi(argv[3]));
  std::printf(
      "{\"log\": %.4f, \"cpu_log\": %.4f, \"plain\": %.4f, \"csv\": %.4f, \"cpu_csv\": %.4f, "
      "\"sqlite\": %.4f, \"handed\": %.5f}\n",
      log.wall, log.cpu, plain, csv.wall, csv.cpu, sqlite.wall, handed);
  return 0;
}
