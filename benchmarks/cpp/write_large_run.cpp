// Writes a large run without a training, by the log's own writer, for benchmarks of readers. The
// states of rows are made up, as are their changes from step to step; all else is as a monitor
// writes it.
#include <algorithm>
#include <array>
#include <atomic>
#include <charconv>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <deque>
#include <exception>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "base/file.h"
#include "pipe/run_directory.h"
#include "rules/check.h"
#include "sinks/sinks.h"
#include "trainmon/config.h"
#include "trainmon/health.h"
#include "trainmon/record.h"

namespace {

using namespace trainmon;

constexpr const char* kUsage =
    "usage: write_large_run OUT RANKS TENSORS STEPS [--steady]\n"
    "\n"
    "  OUT        directory of the run\n"
    "  TENSORS    series of a rank: two thirds are reduced gradients, the same on all ranks; the\n"
    "             rest are local gradients\n"
    "  --steady   one start of all ranks. Else two: the first one ends after 6 tenths of the "
    "steps,\n"
    "             and lacks a rank. The second one goes on from the half, with a tenth of the "
    "ranks\n"
    "             less.\n"
    "\n"
    "Two rows are bad, and a line says where they are: a local gradient has a NaN, and another "
    "one\n"
    "is 1,000 times larger than before.\n";

constexpr std::size_t kSegmentBytes = std::size_t{64} << 20;
constexpr std::int64_t kFirstSecond = 1767225600;  // 2026-01-01

struct Place {
  int restart = 0;
  int rank = 0;
  int tensor = 0;  // of the local gradients
  std::int64_t step = 0;
};

struct Plan {
  std::string out;
  int ranks = 0;
  int tensors = 0;
  int steps = 0;
  bool is_steady = false;

  int local() const { return tensors / 3; }
  int reduced() const { return tensors - local(); }
  int starts() const { return is_steady ? 1 : 2; }
  int ranks_of(int restart) const { return restart == 0 ? ranks : ranks - ranks / 10; }
  bool lacks(int restart, int rank) const {
    return !is_steady && restart == 0 && ranks > 2 && rank == ranks / 3;
  }
  std::int64_t first_step(int restart) const { return restart == 0 ? 0 : steps / 2; }
  std::int64_t end_step(int restart) const {
    return is_steady || restart == 1 ? steps : std::int64_t{steps} * 6 / 10;
  }
  Place nan() const { return {starts() - 1, ranks / 2, local() / 2, std::int64_t{steps} * 8 / 10}; }
  Place spike() const { return {0, ranks / 4, local() / 4, std::int64_t{steps} * 3 / 10}; }
};

// Even bits of any number (splitmix64).
std::uint64_t mixed(std::uint64_t x) {
  x += 0x9e3779b97f4a7c15;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9;
  x = (x ^ (x >> 27)) * 0x94d049bb133111eb;
  return x ^ (x >> 31);
}
// In [0, 1).
double share(std::uint64_t bits) {
  return static_cast<double>(bits >> 11) * 0x1p-53;
}

// Of a tensor whose elements have a distribution like a gradient's.
RowState made_up(std::uint64_t source, int tensor, double scale) {
  std::array<double, 5> random;
  for (std::size_t i = 0; i < random.size(); ++i) random[i] = share(mixed(source + i));
  RowState state;
  state.count = std::int64_t{4096} * (1 + tensor % 7);
  const double count = static_cast<double>(state.count);
  const double sigma = scale * (0.9 + 0.2 * random[0]);
  state.sum = sigma * std::sqrt(count) * (random[1] - 0.5);
  state.mean = state.sum / count;
  state.sum_sq = sigma * sigma * count;
  state.m2 = state.sum_sq - state.sum * state.mean;
  state.min = -static_cast<float>(sigma * (3.0 + random[2]));
  state.max = static_cast<float>(sigma * (3.0 + random[3]));
  state.absmax = std::max(-state.min, state.max);
  state.zeros = random[4] < 0.9 ? 0 : static_cast<std::int64_t>(random[4] * 50.0) - 44;
  return state;
}

class AllSeries : public SeriesTable {
 public:
  explicit AllSeries(const Plan& plan) {
    for (int i = 0; i < plan.tensors; ++i) {
      const bool is_local = i < plan.local();
      const int number = is_local ? i : i - plan.local();
      Series one;
      one.kind = is_local ? kind::kGradUnreduced : kind::kGradReduced;
      one.replication = is_local ? Replication::partial : Replication::identical;
      one.name = name_of(number);
      one.full_shape = {64, 64 * (1 + number % 7)};
      list_.push_back(one);
    }
  }
  static std::string name_of(int number) {
    return "layers." + std::to_string(number / 10) + ".part" + std::to_string(number % 10) +
           ".weight";
  }
  const Series& at(SeriesId id) const override { return list_[id]; }
  std::size_t size() const override { return list_.size(); }

 private:
  std::deque<Series> list_;
};

// One start of one rank: its directory, its log, its books.
class Start {
 public:
  Start(const Plan& plan, const AllSeries& series, int restart, int rank)
      : plan_(plan), series_(series), restart_(restart), sink_(make_log_sink(kSegmentBytes)) {
    Identity who;
    who.rank = rank;
    who.world_size = plan.ranks_of(restart);
    who.run_id = "write_large_run";
    who.restart_count = restart;
    Config config;
    config.out = plan.out;
    config.every = 1;
    run_ = claim_directory(plan.out, who, config.eps);
    run_.start_steps = [first = plan.first_step(restart)] { return std::vector{first}; };
    RunDescription facts;
    facts.start_steps = run_.start_steps();
    write_atomically(run_.directory / "run.json",
                     run_json(run_, who, config_to_json(config), "2026-01-01T00:00:00Z", facts));
    sink_->open(run_, series);
  }

  std::int64_t write_all() {
    for (std::int64_t step = plan_.first_step(restart_); step < plan_.end_step(restart_); ++step) {
      batch_.moment = Moment::backward_end;
      for (int i = 0; i < plan_.local(); ++i) add_row(step, static_cast<SeriesId>(i));
      write(step);
      batch_.moment = Moment::after_step;
      for (int i = plan_.local(); i < plan_.tensors; ++i) add_row(step, static_cast<SeriesId>(i));
      Outcome taken;
      taken.window = step - plan_.first_step(restart_);
      taken.step = step;
      taken.fate = Fate::taken;
      taken.backwards = 1;
      batch_.outcomes.push_back(taken);
      batch_.scalars.push_back(
          {"loss", taken.window, seq_, 3.0 + share(mixed(static_cast<std::uint64_t>(step)))});
      write(step);
    }
    sink_->close();
    Health health;
    SinkHealth log;
    log.name = "log";
    log.rows_written = health.rows_produced = rows_;
    log.batches_written = static_cast<std::int64_t>(batch_.number);
    health.sinks = {log};
    health.alerts = alerts_;
    write_atomically(run_.directory / "health.json", health_json(health, true));
    return rows_;
  }

 private:
  bool is_at(const Place& place, std::int64_t step, SeriesId id) const {
    return place.restart == restart_ && place.rank == run_.rank && place.step == step &&
           static_cast<SeriesId>(place.tensor) == id;
  }

  void add_row(std::int64_t step, SeriesId id) {
    const bool is_local = static_cast<int>(id) < plan_.local();
    const int tensor = static_cast<int>(id) - (is_local ? 0 : plan_.local());
    // What is reduced does not depend on the rank.
    const std::uint64_t whose = is_local ? static_cast<std::uint64_t>(run_.rank) + 1 : 0;
    const std::uint64_t source = mixed(mixed(mixed(whose) + static_cast<std::uint64_t>(tensor)) +
                                       static_cast<std::uint64_t>(step));
    double scale = std::exp(-0.4 * (tensor % 17)) / (1.0 + 0.001 * static_cast<double>(step));
    if (is_at(plan_.spike(), step, id)) scale *= 1000.0;
    Row& row = batch_.rows.emplace_back();
    row.key.series = id;
    row.key.window = step - plan_.first_step(restart_);
    row.key.seq = seq_++;
    row.shape = kFullShape;
    row.state = made_up(source, tensor, scale);
    if (!is_at(plan_.nan(), step, id)) return;
    row.state.nans = 1;
    row.key.flags |= flag::kNonFinite;
    Alert alert;
    alert.rule = "non_finite";
    alert.key = row.key;
    alert.step = step;
    alert.message = non_finite_text(series_.at(id), row.state);
    batch_.alerts.push_back(alert);
    ++alerts_;
  }

  void write(std::int64_t step) {
    batch_.time_ns = (kFirstSecond + step) * 1'000'000'000;
    rows_ += batch_.row_count();
    sink_->write(batch_);
    ++batch_.number;
    batch_.rows.clear();
    batch_.outcomes.clear();
    batch_.scalars.clear();
    batch_.alerts.clear();
  }

  const Plan& plan_;
  const AllSeries& series_;
  const int restart_;
  std::unique_ptr<Sink> sink_;
  RunInfo run_;
  RecordBatch batch_;
  std::uint64_t seq_ = 0;
  std::int64_t rows_ = 0;
  std::int64_t alerts_ = 0;
};

bool read_plan(int argc, char** argv, Plan& plan) {
  const std::array<int*, 3> numbers = {&plan.ranks, &plan.tensors, &plan.steps};
  std::size_t place = 0;
  for (int i = 1; i < argc; ++i) {
    const std::string_view word = argv[i];
    if (word == "--steady") {
      plan.is_steady = true;
    } else if (plan.out.empty()) {
      plan.out = word;
    } else if (place == numbers.size() ||
               std::from_chars(word.begin(), word.end(), *numbers[place]).ec != std::errc{} ||
               *numbers[place++] < 1) {
      return false;
    }
  }
  return place == numbers.size() && plan.local() > 0;
}

void say(const char* what, const Place& place) {
  std::printf("%s restart %d rank %d step %lld name %s\n", what, place.restart, place.rank,
              static_cast<long long>(place.step), AllSeries::name_of(place.tensor).c_str());
}

std::int64_t write_run(const Plan& plan) {
  const AllSeries series(plan);
  std::atomic<std::int64_t> rows = 0;
  for (int restart = 0; restart < plan.starts(); ++restart) {
    // Rank 0 comes first: the others take the number of their start from it.
    rows += Start(plan, series, restart, 0).write_all();
    std::atomic<int> next = 1;
    std::exception_ptr failed;
    std::mutex mutex;
    const auto write_ranks = [&] {
      try {
        for (int rank = next++; rank < plan.ranks_of(restart); rank = next++) {
          if (!plan.lacks(restart, rank)) rows += Start(plan, series, restart, rank).write_all();
        }
      } catch (...) {
        const std::lock_guard lock(mutex);
        failed = std::current_exception();
      }
    };
    {
      std::vector<std::jthread> threads;
      for (unsigned i = 0; i < std::max(1u, std::thread::hardware_concurrency()); ++i) {
        threads.emplace_back(write_ranks);
      }
    }
    if (failed) std::rethrow_exception(failed);
  }
  return rows;
}

}  // namespace

int main(int argc, char** argv) {
  Plan plan;
  if (!read_plan(argc, argv, plan)) {
    std::fputs(kUsage, stderr);
    return 2;
  }
  try {
    std::printf("rows %lld\n", static_cast<long long>(write_run(plan)));
  } catch (const std::exception& error) {
    std::fprintf(stderr, "write_large_run: %s\n", error.what());
    return 1;
  }
  say("nan", plan.nan());
  say("spike", plan.spike());
  return 0;
}
