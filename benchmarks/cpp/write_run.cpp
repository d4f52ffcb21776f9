// Writes a run as a training would, through the monitor, for benchmarks and tests of readers.
#include <array>
#include <charconv>
#include <cmath>
#include <cstdio>
#include <limits>
#include <random>
#include <string>
#include <string_view>
#include <vector>

#include "trainmon/monitor.h"

namespace {

using namespace trainmon;

constexpr const char* kUsage =
    "usage: write_run OUT TENSORS STEPS [RANKS] [--all] [--bad-step N]\n"
    "\n"
    "  OUT         directory of the run\n"
    "  TENSORS     parameters of 64 elements\n"
    "  RANKS       default 1\n"
    "  --all       beside reduced gradients: local gradients, both moments, weights, and of three\n"
    "              modules for four parameters the outputs and their gradients\n"
    "  --bad-step  the last reduced gradient of rank 0 has a NaN at this step\n";

struct Plan {
  std::string out;
  int tensors = 0;
  int steps = 0;
  int ranks = 1;
  bool has_all_kinds = false;
  int bad_step = -1;
};

// The series that are read at one moment of a step.
struct Moments {
  std::vector<SeriesId> forward, backward, before_step, after_step;
};

class Rank {
 public:
  Rank(const Plan& plan, int rank)
      : plan_(plan),
        rank_(rank),
        monitor_(config(plan), identity(plan, rank)),
        random_(static_cast<unsigned>(rank) + 1) {
    optimizer_ = monitor_.add_optimizer(0);
    add(moments_.before_step, kind::kGradReduced, plan.tensors, "weight", Replication::identical);
    std::normal_distribution<float> normal;
    noise_.resize(1 << 16);
    for (float& x : noise_) x = normal(random_);
    if (!plan.has_all_kinds) return;
    const int modules = plan.tensors * 3 / 4;
    add(moments_.forward, kind::kActv, modules, "output.0", Replication::independent);
    add(moments_.backward, kind::kActvGrad, modules, "output.0", Replication::independent);
    add(moments_.backward, kind::kGradUnreduced, plan.tensors, "weight", Replication::partial);
    for (const std::string_view kind :
         {kind::kParamUpdated, std::string_view("exp_avg"), std::string_view("exp_avg_sq")}) {
      add(moments_.after_step, kind, plan.tensors, "weight", Replication::identical);
    }
  }

  void step(int step) {
    if (plan_.has_all_kinds) {
      observe(moments_.forward, step);
      monitor_.seal(Moment::forward_end);
      observe(moments_.backward, step);
      monitor_.seal(Moment::backward_end);
    }
    monitor_.begin_attempt(optimizer_);
    observe(moments_.before_step, step);
    monitor_.end_attempt(optimizer_, Fate::taken, 1.0);
    observe(moments_.after_step, step);
    monitor_.add_scalar("loss", 3.0 + 1.0 / (1.0 + step));
    monitor_.seal(Moment::after_step);
  }

  std::int64_t stop() {
    std::int64_t rows = 0;
    for (const SinkHealth& sink : monitor_.stop().sinks) rows += sink.rows_written;
    return rows;
  }

 private:
  static Config config(const Plan& plan) {
    Config config;
    config.out = plan.out;
    config.overflow = Overflow::block;
    config.every = 1;
    config.allow_volume = true;
    config.stop_timeout_seconds = 3600;
    return config;
  }
  static Identity identity(const Plan& plan, int rank) {
    Identity identity;
    identity.rank = rank;
    identity.world_size = plan.ranks;
    identity.run_id = "write_run";
    return identity;
  }

  void add(std::vector<SeriesId>& moment, std::string_view kind, int count, std::string_view last,
           Replication replication) {
    for (int i = 0; i < count; ++i) {
      Series one;
      one.kind = kind;
      one.name = "layers." + std::to_string(i / 10) + ".part" + std::to_string(i % 10) + "." +
                 std::string(last);
      one.full_shape = {64};
      one.replication = replication;
      moment.push_back(monitor_.add_series(one));
    }
  }

  void observe(const std::vector<SeriesId>& series, int step) {
    std::array<float, 64> values;
    const std::int64_t size = values.size();
    TensorView view;
    view.data = values.data();
    view.ndim = 1;
    view.sizes = &size;
    for (std::size_t i = 0; i < series.size(); ++i) {
      const float scale = std::exp(-static_cast<float>(i % 17)) / (1.0f + static_cast<float>(step));
      const std::size_t from = random_() % (noise_.size() - values.size());
      for (std::size_t k = 0; k < values.size(); ++k) values[k] = noise_[from + k] * scale;
      const bool is_bad = step == plan_.bad_step && rank_ == 0 &&
                          &series == &moments_.before_step && i + 1 == series.size();
      if (is_bad) values[7] = std::numeric_limits<float>::quiet_NaN();
      monitor_.observe(series[i], view);
    }
  }

  const Plan& plan_;
  const int rank_;
  Monitor monitor_;
  int optimizer_ = 0;
  Moments moments_;
  std::mt19937 random_;
  std::vector<float> noise_;
};

bool read_number(const char* text, int& number) {
  const std::string_view given = text;
  return std::from_chars(given.begin(), given.end(), number).ec == std::errc{} && number >= 0;
}

bool read_plan(int argc, char** argv, Plan& plan) {
  const std::array<int*, 3> numbers = {&plan.tensors, &plan.steps, &plan.ranks};
  std::size_t place = 0;
  for (int i = 1; i < argc; ++i) {
    const std::string_view word = argv[i];
    if (word == "--all") {
      plan.has_all_kinds = true;
    } else if (word == "--bad-step") {
      if (++i == argc || !read_number(argv[i], plan.bad_step)) return false;
    } else if (plan.out.empty()) {
      plan.out = word;
    } else if (place == numbers.size() || !read_number(argv[i], *numbers[place++])) {
      return false;
    }
  }
  return place >= 2;
}

}  // namespace

int main(int argc, char** argv) {
  Plan plan;
  if (!read_plan(argc, argv, plan)) {
    std::fputs(kUsage, stderr);
    return 2;
  }
  for (int number = 0; number < plan.ranks; ++number) {
    Rank rank(plan, number);
    for (int step = 0; step < plan.steps; ++step) rank.step(step);
    std::printf("rank %d: %lld rows\n", number, static_cast<long long>(rank.stop()));
  }
  return 0;
}
