// The rule that looks at statistics: keeps their histories and asks its checks, in order.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <stdexcept>
#include <unordered_map>
#include <utility>

#include "base/text.h"
#include "rules/check.h"
#include "rules/findings.h"

namespace trainmon {
namespace {

constexpr std::int32_t kMostOrdinals = 255;
constexpr std::size_t kMostHistories = std::size_t{1} << 18;

class Histories {
 public:
  explicit Histories(std::size_t stats) : stats_(stats) {}

  // One running mean per statistic. Valid until the next call.
  RunningMean* at(const RowKey& key) { return at(place_of(key)); }

  // Takes over what `earlier` knows and this does not, for pairs of (own, its) statistics.
  void keep(const Histories& earlier,
            const std::vector<std::pair<std::size_t, std::size_t>>& statistics) {
    for (const auto& [place, begin] : earlier.places_) {
      RunningMean* const own = at(place);
      for (const auto& [to, from] : statistics) {
        if (own[to].values == 0) own[to] = earlier.means_[begin + from];
      }
    }
  }

 private:
  static std::uint64_t place_of(const RowKey& key) {
    const auto ordinal = [](std::int32_t value) {
      return static_cast<std::uint64_t>(std::clamp(value, 0, kMostOrdinals));
    };
    const std::uint64_t series = std::uint64_t{key.series} << 16;
    return series | ordinal(key.accum) << 8 | ordinal(key.call);
  }

  RunningMean* at(std::uint64_t place) {
    // A series beyond the limit still gets one.
    if (places_.size() >= kMostHistories && !places_.contains(place)) place |= 0xFFFF;
    if (const auto known = places_.find(place); known != places_.end()) {
      return &means_[known->second];
    }
    const std::size_t begin = means_.size();
    means_.resize(begin + stats_);  // first: a place without means would be read
    places_.emplace(place, begin);
    return &means_[begin];
  }

  const std::size_t stats_;
  std::unordered_map<std::uint64_t, std::size_t> places_;  // (series, accum, call) -> in means_
  std::vector<RunningMean> means_;
};

class StatisticsRule final : public Rule {
 public:
  StatisticsRule(std::vector<std::unique_ptr<Check>> checks, const Telling& telling)
      : checks_(std::move(checks)),
        stats_(stats_of(checks_)),
        findings_(telling),
        histories_(stats_.size()) {}

  std::string_view name() const override { return checks_.front()->name(); }

  void look(const RecordBatch& batch, const SeriesTable& series,
            std::vector<Alert>& alerts) override {
    for (const Row& row : batch.rows) {
      // Nothing was measured: such a row has no statistics to judge.
      if (row.state.count == 0 || (row.key.flags & flag::kNotReady) != 0) continue;
      look_at(row, series.at(row.key.series), alerts);
    }
    findings_.end_batch(alerts);
  }

  void keep_history_of(const Rule& earlier) override {
    const auto* known = dynamic_cast<const StatisticsRule*>(&earlier);
    if (known == nullptr) return;
    std::vector<std::pair<std::size_t, std::size_t>> both;
    for (std::size_t i = 0; i < stats_.size(); ++i) {
      const auto same = std::find(known->stats_.begin(), known->stats_.end(), stats_[i]);
      if (same != known->stats_.end()) both.emplace_back(i, same - known->stats_.begin());
    }
    histories_.keep(known->histories_, both);
  }

 private:
  static std::vector<Stat> stats_of(const std::vector<std::unique_ptr<Check>>& checks) {
    std::vector<Stat> all;
    for (const auto& check : checks) {
      for (const Stat stat : check->stats()) {
        if (std::find(all.begin(), all.end(), stat) == all.end()) all.push_back(stat);
      }
    }
    return all;
  }

  void look_at(const Row& row, const Series& series, std::vector<Alert>& alerts) {
    RunningMean* const histories = histories_.at(row.key);
    for (std::size_t i = 0; i < stats_.size(); ++i) {
      const Stat stat = stats_[i];
      if (!is_told(stat, row.state)) continue;
      RunningMean& history = histories[i];
      const double value = derive(stat, row.state);
      if ((row.key.flags & flag::kMasked) != 0 && std::isinf(value)) continue;
      const Judged it{row, series, stat, value, history};
      for (std::size_t c = 0; c < checks_.size(); ++c) {
        const Check& check = *checks_[c];
        if (!check.looks_at(stat) || !check.fires(it)) continue;
        findings_.add(row.key, series.optimizer, c, stat, alerts,
                      [&] { return alert_of(it, check); });
        break;
      }
      history.add(it.value);
    }
  }

  static Alert alert_of(const Judged& it, const Check& check) {
    Alert alert;
    alert.rule = check.name();
    alert.key = it.row.key;
    alert.message = series_text(it.series) + ": " + std::string(stat_name(it.stat)) + " " +
                    number_text(it.value, 6) + " " + check.complaint(it);
    alert.stat = stat_name(it.stat);
    alert.value = it.value;
    alert.expected = it.before.mean;
    return alert;
  }

  const std::vector<std::unique_ptr<Check>> checks_;
  const std::vector<Stat> stats_;
  Findings findings_;
  Histories histories_;
};

}  // namespace

std::unique_ptr<Rule> make_rule_of(std::vector<std::unique_ptr<Check>> checks,
                                   const Telling& telling) {
  if (checks.empty()) throw std::invalid_argument("no rule to choose the first of");
  return std::make_unique<StatisticsRule>(std::move(checks), telling);
}

std::unique_ptr<Rule> make_first_of_rule(const std::vector<StatisticRule>& rules,
                                         const Telling& telling) {
  std::vector<std::unique_ptr<Check>> checks;
  for (const StatisticRule& rule : rules) {
    checks.push_back(std::visit([](const auto& one) { return make_check(one); }, rule));
  }
  return make_rule_of(std::move(checks), telling);
}

std::unique_ptr<Rule> make_deviation_rule(const DeviationRule& rule, const Telling& telling) {
  return make_first_of_rule({rule}, telling);
}

std::unique_ptr<Rule> make_limit_rule(const LimitRule& rule, const Telling& telling) {
  return make_first_of_rule({rule}, telling);
}

}  // namespace trainmon
