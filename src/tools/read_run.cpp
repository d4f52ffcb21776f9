// Joins the logs of all ranks and restarts into rows that carry their step.
#include <algorithm>
#include <array>
#include <stdexcept>
#include <string_view>
#include <tuple>
#include <unordered_map>

#include "base/text.h"
#include "base/timeline.h"
#include "tools/account.h"
#include "tools/merge_rows.h"
#include "tools/missing_ranks.h"
#include "tools/run_layout.h"
#include "tools/series_index.h"
#include "trainmon/config.h"
#include "trainmon/tools.h"

namespace trainmon {
namespace {

constexpr std::array kFixedKinds = {kind::kGradUnreduced,
                                    kind::kGradReduced,
                                    kind::kParamOrigin,
                                    kind::kParamUpdated,
                                    kind::kActv,
                                    kind::kActvGrad,
                                    kind::kCc,
                                    kind::kMgDirection,
                                    kind::kGradMicro,
                                    kind::kUpdateRatio,
                                    kind::kStack,
                                    kind::kAttnEntropy,
                                    kind::kAttnMax,
                                    kind::kAttnMaxLogit,
                                    kind::kStableRank,
                                    kind::kSpectralNorm,
                                    kind::kRouterSimilarity,
                                    kind::kRouterEntropy};
constexpr std::array<std::string_view, 7> kGroups = {
    "grads", "weights", "moments", "activations", "attention", "spectral", "router"};

bool contains(const auto& list, std::string_view name) {
  return std::find(list.begin(), list.end(), name) != list.end();
}

bool kind_selected(std::string_view kind, const std::vector<std::string>& kinds) {
  if (kinds.empty() || contains(kinds, kind)) return true;
  // Optimizer state goes by the optimizer's own names, so "moments" is every other kind.
  return contains(kinds, "moments") && !contains(kFixedKinds, kind);
}

std::vector<std::string> without_groups(const std::vector<std::string>& kinds) {
  std::vector<std::string> plain;
  for (const std::string& kind : kinds) {
    if (!contains(kGroups, kind)) {
      plain.push_back(kind);
    } else if (kind == "moments") {
      plain.push_back(kind);
    } else {
      for (std::string& member : expand_kinds({kind})) plain.push_back(std::move(member));
    }
  }
  return plain;
}

void check_kinds(const std::vector<std::string>& asked, const std::vector<std::string>& present) {
  // Optimizers name their state as they like: where no kind is known, none can be called wrong.
  if (present.empty()) return;
  std::vector<std::string_view> known(kGroups.begin(), kGroups.end());
  known.insert(known.end(), kFixedKinds.begin(), kFixedKinds.end());
  for (const std::string& kind : present) {
    if (!contains(known, kind)) known.push_back(kind);
  }
  for (const std::string& kind : asked) {
    if (contains(known, kind)) continue;
    std::string text = "unknown kind '" + printable(kind) + "'";
    if (const auto nearest = nearest_name(kind, known)) {
      text += " (did you mean '" + *nearest + "'?)";
    }
    text += "; this run has";
    for (const std::string& name : present) text += " " + printable(name);
    throw std::invalid_argument(text);
  }
}

// Which restart is the newest in which a rank went through a step of an optimizer.
using StepKey = std::tuple<int, std::int32_t, std::int64_t>;  // rank, optimizer, step
using NewestRestart = std::map<StepKey, int>;

class RunReader {
 public:
  explicit RunReader(const ReadOptions& options)
      : options_(options), kinds_(without_groups(options.kinds)) {}

  RunRows read(const std::filesystem::path& run) {
    const std::vector<RankDirectory> directories = rank_directories(run);
    for (const RankDirectory& directory : directories) {
      if (result_.ranks.empty() || result_.ranks.back() != directory.rank) {
        result_.ranks.push_back(directory.rank);
      }
      if (is_asked_for(directory.rank)) read_directory(directory);
    }
    find_missing(directories);
    std::sort(result_.kinds.begin(), result_.kinds.end());
    check_kinds(options_.kinds, result_.kinds);
    if (!options_.all_restarts) keep_newest();
    result_.all_restarts = options_.all_restarts;
    result_.series = index_.take();
    sort_rows();
    if (options_.merged) merge_ranks(result_);
    return std::move(result_);
  }

 private:
  bool is_asked_for(int rank) const {
    const std::vector<int>& asked = options_.ranks;
    return asked.empty() || std::find(asked.begin(), asked.end(), rank) != asked.end();
  }

  void find_missing(const std::vector<RankDirectory>& directories) {
    const bool has_all = std::all_of(options_.ranks.begin(), options_.ranks.end(), [&](int rank) {
      return std::binary_search(result_.ranks.begin(), result_.ranks.end(), rank);
    });
    if (!options_.ranks.empty() && has_all) return;
    // A rank asked for is not there: the others know whether it should be.
    for (const RankDirectory& directory : directories) {
      if (is_asked_for(directory.rank) || directory.error) continue;
      std::vector<Damage> not_asked_for;
      expected_.add(read_run_json(directory, not_asked_for));
    }
    result_.missing = expected_.missing(directories);
    std::erase_if(result_.missing.ranks, [this](int rank) { return !is_asked_for(rank); });
  }

  bool is_wanted(const Series& series) const {
    return kind_selected(series.kind, kinds_) &&
           name_selected(series.name, options_.include, options_.exclude);
  }

  void read_directory(const RankDirectory& directory) {
    if (directory.error) {
      result_.damage.push_back({directory.path, 0, directory.error.message()});
      return;
    }
    const RunFacts facts = read_run_json(directory, result_.damage);
    expected_.add(facts);
    // Before the log: a run that ends between the two reads must not look as if it had lost rows.
    const std::optional<StoredHealth> stored = read_health_json(directory, result_.damage);
    LogContents log = read_log(directory.path, directory.rank, directory.restart,
                               [this](const Series& series) { return is_wanted(series); });
    result_.torn_tails += log.torn_tails;
    result_.damage.insert(result_.damage.end(), log.damage.begin(), log.damage.end());
    if (stored && stored->closed) hold_against_health(directory, stored->health, log);
    for (const auto& [id, series] : log.series) {
      if (!contains(result_.kinds, series.kind)) result_.kinds.push_back(series.kind);
    }
    Timeline timeline(facts.start_steps);
    for (const RecordBatch& batch : log.batches) timeline.add(batch);
    note_steps(directory, timeline, log);
    unified_.clear();
    for (const RecordBatch& batch : log.batches) take_batch(directory, facts, timeline, log, batch);
  }

  // A segment that is gone or ends early between two frames shows nowhere else. Of a run that was
  // not stopped in order the end is missing as a matter of course.
  void hold_against_health(const RankDirectory& directory, const Health& health,
                           const LogContents& log) {
    const std::int64_t deleted = rows_deleted(log);
    for (const SinkHealth& sink : health.sinks) {
      if (sink.name != "log" || log.rows + deleted >= sink.rows_written) continue;
      std::string what = "health.json says " + grouped(sink.rows_written) +
                         " rows were written, the log holds " + grouped(log.rows);
      if (deleted > 0) what += " and says that " + grouped(deleted) + " were deleted";
      result_.damage.push_back({directory.path, 0, std::move(what)});
    }
  }

  std::uint32_t unified(const LogContents& log, SeriesId id) {
    const auto [known, is_new] = unified_.try_emplace(id, 0);
    if (is_new) known->second = index_.add(log.series.at(id));
    return known->second;
  }

  void note_steps(const RankDirectory& directory, const Timeline& timeline,
                  const LogContents& log) {
    for (const auto& [optimizer, windows] : timeline.outcomes()) {
      for (const auto& [window, outcome] : windows) {
        note({directory.rank, optimizer, outcome.step}, directory.restart);
      }
    }
    for (const auto& [optimizer, window] : log.windows) {
      note({directory.rank, optimizer, timeline.at(optimizer, window).step}, directory.restart);
    }
  }

  void note(const StepKey& key, int restart) {
    int& newest = newest_[key];
    newest = std::max(newest, restart);
  }

  bool in_range(std::int64_t step) const {
    return step >= options_.first_step.value_or(step) && step <= options_.last_step.value_or(step);
  }

  void take_batch(const RankDirectory& directory, const RunFacts& facts, const Timeline& timeline,
                  const LogContents& log, const RecordBatch& batch) {
    Outcome outcome{-1, -1};
    for (const Row& row : batch.rows) {
      const std::uint32_t series = unified(log, row.key.series);
      const std::int32_t optimizer = index_.at(series).optimizer;
      if (outcome.optimizer != optimizer || outcome.window != row.key.window) {
        outcome = timeline.at(optimizer, row.key.window);
      }
      if (!in_range(outcome.step)) continue;
      ReadRow out;
      out.restart = directory.restart;
      out.rank = directory.rank;
      out.series = series;
      out.window = row.key.window;
      out.step = outcome.step;
      out.attempt = outcome.attempt;
      out.fate = outcome.fate;
      out.loss_scale = outcome.loss_scale;
      out.accum = row.key.accum;
      out.micro_step = facts.grad_acc_steps
                           ? static_cast<std::int32_t>(row.key.accum % *facts.grad_acc_steps)
                           : row.key.accum;
      out.call = row.key.call;
      out.seq = row.key.seq;
      out.flags = row.key.flags;
      out.state = row.state;
      result_.rows.push_back(out);
    }
    for (const Payload& payload : batch.payloads) {
      const std::uint32_t series = unified(log, payload.key.series);
      const Outcome place = timeline.at(index_.at(series).optimizer, payload.key.window);
      if (!in_range(place.step)) continue;
      result_.payloads.push_back({directory.restart, directory.rank, series, place.step,
                                  place.attempt, place.fate, payload});
    }
    for (const Scalar& scalar : batch.scalars) {
      const std::int64_t step = timeline.at(facts.clock, scalar.window).step;
      if (!in_range(step)) continue;
      clock_steps_.push_back({directory.rank, facts.clock, step});
      note(clock_steps_.back(), directory.restart);
      result_.scalars.push_back(
          {directory.restart, directory.rank, step, scalar.name, scalar.value});
    }
    for (const Alert& alert : batch.alerts) {
      ReadAlert out{directory.restart, directory.rank, alert};
      out.alert.key.series = unified(log, alert.key.series);
      take_alert(std::move(out));
    }
    for (const Gap& gap : batch.gaps) {
      result_.gaps.push_back({directory.restart, directory.rank, gap});
    }
  }

  // Repeats come as further records with a larger count: the last one tells all.
  void take_alert(ReadAlert alert) {
    const Alert& found = alert.alert;
    const auto key = std::tuple(alert.restart, alert.rank, found.key.series, found.key.seq,
                                found.rule, found.stat);
    const auto [known, is_new] = alert_places_.try_emplace(key, result_.alerts.size());
    if (is_new) {
      result_.alerts.push_back(std::move(alert));
    } else {
      ReadAlert& first = result_.alerts[known->second];
      first.alert.count = std::max(first.alert.count, alert.alert.count);
    }
  }

  void keep_newest() {
    StepKey last_key{-1, -1, -1};
    int newest = -1;
    const auto is_newest = [&](const StepKey& key, int restart) {
      if (key != last_key) newest = newest_.at(last_key = key);
      return newest == restart;
    };
    std::erase_if(result_.rows, [&](const ReadRow& row) {
      return !is_newest({row.rank, index_.at(row.series).optimizer, row.step}, row.restart);
    });
    std::erase_if(result_.payloads, [&](const ReadPayload& payload) {
      return !is_newest({payload.rank, index_.at(payload.series).optimizer, payload.step},
                        payload.restart);
    });
    std::size_t index = 0;
    std::erase_if(result_.scalars, [&](const ReadScalar& scalar) {
      return !is_newest(clock_steps_[index++], scalar.restart);
    });
  }

  void sort_rows() {
    std::sort(result_.rows.begin(), result_.rows.end(), [](const ReadRow& a, const ReadRow& b) {
      return std::tie(a.restart, a.step, a.attempt, a.rank, a.seq) <
             std::tie(b.restart, b.step, b.attempt, b.rank, b.seq);
    });
    std::sort(result_.payloads.begin(), result_.payloads.end(),
              [](const ReadPayload& a, const ReadPayload& b) {
                return std::tie(a.restart, a.step, a.attempt, a.rank, a.payload.key.seq) <
                       std::tie(b.restart, b.step, b.attempt, b.rank, b.payload.key.seq);
              });
    std::stable_sort(result_.scalars.begin(), result_.scalars.end(),
                     [](const ReadScalar& a, const ReadScalar& b) {
                       return std::tie(a.restart, a.step, a.rank) <
                              std::tie(b.restart, b.step, b.rank);
                     });
  }

  const ReadOptions& options_;
  const std::vector<std::string> kinds_;
  RunRows result_;
  ExpectedRanks expected_;
  SeriesIndex index_;
  std::unordered_map<SeriesId, std::uint32_t> unified_;  // of the directory being read
  using AlertKey = std::tuple<int, int, std::uint32_t, std::uint64_t, std::string, std::string>;
  std::map<AlertKey, std::size_t> alert_places_;
  NewestRestart newest_;
  std::vector<StepKey> clock_steps_;  // of result_.scalars, same order
};

}  // namespace

RunRows read_run(const std::filesystem::path& run, const ReadOptions& options) {
  return RunReader(options).read(run);
}

}  // namespace trainmon
