#include "answers/pushed_steps.h"

#include <algorithm>
#include <array>
#include <iterator>
#include <limits>
#include <stdexcept>
#include <string_view>
#include <utility>

#include "answers/pushed_record.h"
#include "base/text.h"
#include "model/layers.h"
#include "read/completeness.h"

namespace trainmon {
namespace {

constexpr std::int64_t kPiece = std::int64_t{4} << 20;  // bytes of a rank's log read at a time
constexpr std::size_t kMostWaiting = 4096;              // steps held back for a rank that lags
constexpr std::int64_t kTimeApart = 1'000'000;          // ns between steps: trackers keep ms
constexpr std::chrono::seconds kPatience{60};           // for a rank that says nothing

ReadOptions of_ranks(const std::vector<int>& ranks) {
  ReadOptions options;
  options.ranks = ranks;
  return options;
}

WriterState writer_of(const RankDirectory& place) {
  std::vector<Damage> said_elsewhere;
  const RunFacts facts = read_run_json(place, said_elsewhere);
  const auto stored = read_health_json(place, said_elsewhere);
  return completeness_of(place, facts, stored, nullptr, true).writer;
}

std::string name_of(const Series& series) {
  std::string name = series.chunk == 0 ? "" : std::to_string(series.chunk) + ":";
  name += series.name.empty() ? "(root)" : series.name;
  if (!series.element.empty()) name += " " + series.element;
  return printable(name);
}

std::size_t order_of_kind(std::string_view kind) {
  constexpr std::array kFirst = {kind::kGradReduced, kind::kGradUnreduced, kind::kParamUpdated,
                                 kind::kParamOrigin};
  return static_cast<std::size_t>(std::ranges::find(kFirst, kind) - kFirst.begin());
}

// Of two tries of a step the later counts; what went wrong adds up.
void take_over(TailStep& step, TailStep&& earlier) {
  step.non_finite += earlier.non_finite;
  for (const auto& [rule, count] : earlier.alerts) step.alerts[rule] += count;
  step.rows_lost += earlier.rows_lost;
  step.gaps += earlier.gaps;
  step.scalars.insert(step.scalars.begin(), earlier.scalars.begin(), earlier.scalars.end());
}

// What was sent of other ranks is not sent again, and of these it never was.
void check_ranks(const PushPosition& position, const std::vector<int>& ranks) {
  if (!position.ranks || *position.ranks == ranks) return;
  const auto said = [](const std::vector<int>& of) {
    return of.empty() ? "all ranks" : "--rank " + ranks_text(of);
  };
  throw std::invalid_argument("--rank: the steps of " + said(*position.ranks) +
                              " were sent before, not those of " + said(ranks) +
                              "; another --project begins anew");
}

}  // namespace

PushedSteps::PushedSteps(std::filesystem::path run, PushOptions options)
    : run_(std::move(run)),
      options_(std::move(options)),
      filter_(of_ranks(options_.ranks)),
      choice_(options_.series, record_and({})) {
  find_starts();  // throws where there is no run
  if (starts_.empty() && !options_.ranks.empty()) {
    throw std::invalid_argument("--rank: the run has no rank " + ranks_text(options_.ranks));
  }
  if (options_.state) file_.emplace(*options_.state);
  std::vector<int> asked = options_.ranks;
  std::ranges::sort(asked);
  // A folder that was emptied and used again holds another run.
  if (file_ && std::ranges::any_of(starts_, [&](const auto& start) {
        return file_->at_start().steps.contains(start.second.id);
      })) {
    position_ = file_->at_start();
    check_ranks(position_, asked);
  }
  position_.ranks = asked;
  given_ = position_;
  choice_ = SeriesChoice(options_.series, record_and(position_.chosen));
}

bool PushedSteps::is_over() const {
  return ready_.empty() && (starts_.empty() || starts_.rbegin()->second.is_flushed);
}

std::vector<std::string> PushedSteps::incomplete() const {
  return incompleteness(rank_directories(run_), filter_);
}

std::vector<PushedStep> PushedSteps::look(std::size_t most) {
  find_starts();
  for (auto& [restart, start] : starts_) {
    for (auto& [number, rank] : start.ranks) rank.is_at_end = false;
  }
  while (ready_.size() < most && read_some()) continue;
  std::vector<PushedStep> steps;
  while (!ready_.empty() && steps.size() < most) {
    const PushedStep& next = ready_.front();
    given_.steps[next.start] = next.step;
    given_.chosen.assign(choice_.chosen().begin(),
                         choice_.chosen().begin() + static_cast<std::ptrdiff_t>(next.chosen));
    steps.push_back(std::move(ready_.front()));
    ready_.pop_front();
  }
  if (steps.empty()) return steps;
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  const std::int64_t now_ns = std::chrono::duration_cast<std::chrono::nanoseconds>(now).count();
  steps.back().values.emplace_back(kDamaged, static_cast<double>(damaged_));
  steps.back().values.emplace_back(kLag, static_cast<double>(now_ns - steps.back().time_ns) * 1e-9);
  steps.back().values.emplace_back(kLeftOut, static_cast<double>(choice_.left_out()));
  std::vector<RankDirectory> ranks;
  for (const auto& [restart, start] : starts_) {
    if (start.id != steps.back().start) continue;
    for (const auto& [number, rank] : start.ranks) ranks.push_back(rank.tail->directory());
  }
  std::ranges::copy(monitors_now(ranks), std::back_inserter(steps.back().values));
  std::ranges::sort(steps.back().values);
  return steps;
}

void PushedSteps::done(const std::string& verdict) {
  given_.verdict = verdict;
  position_ = given_;
  if (file_) file_->write(position_);
}

// Of the oldest start that says something; an older one must have ended before the next is begun.
bool PushedSteps::read_some() {
  for (auto& [restart, start] : starts_) {
    const bool is_newest = restart == starts_.rbegin()->first;
    if (start.is_flushed && !is_newest) continue;
    if (read_ranks(start)) {
      emit_ready(restart, start, false);
      return true;
    }
    emit_ready(restart, start, false);
    if (start.is_flushed) continue;
    const bool goes_on = std::ranges::any_of(start.ranks, [&](const auto& rank) {
      const WriterState state = writer_of(rank.second.tail->directory());
      return state == WriterState::running || (is_newest && state == WriterState::unknown);
    });
    if (goes_on) return false;
    // What was written before the end, and after the last look.
    for (auto& [number, rank] : start.ranks) rank.is_at_end = false;
    if (read_ranks(start)) return true;
    flush(start);
    emit_ready(restart, start, true);
    start.is_flushed = true;
    if (is_newest) return false;
    start.tensors.clear();  // which point into these
    start.ranks.clear();
  }
  return false;
}

// Reads a piece of each rank that is not at its end; whether one had any.
bool PushedSteps::read_ranks(Start& start) {
  TailNews news;
  bool is_new = false;
  for (auto& [number, rank] : start.ranks) {
    if (rank.is_at_end) continue;
    if (rank.tail->look(news, kPiece)) {
      is_new = true;
      rank.heard = Clock::now();
    } else {
      rank.is_at_end = true;
    }
  }
  if (is_new) start.is_flushed = false;
  gather(start, news);
  return is_new;
}

void PushedSteps::flush(Start& start) {
  TailNews news;
  for (auto& [number, rank] : start.ranks) {
    rank.tail->unfinished(news);
    rank.tail->check(news.damage);
  }
  gather(start, news);
}

void PushedSteps::gather(Start& start, TailNews& news) {
  for (TailStep& step : news.steps) {
    Rank& rank = start.ranks.at(step.rank);
    rank.told = step.outcome.step;
    rank.is_taken = step.is_closed && step.outcome.fate == Fate::taken;
    if (step.outcome.step <= start.newest) {
      late_ += step.rows;
      continue;
    }
    auto& here = start.waiting[step.outcome.step];
    if (const auto earlier = here.find(step.rank); earlier != here.end()) {
      take_over(step, std::move(earlier->second));
    }
    here[step.rank] = std::move(step);
  }
  late_ += news.rows_late;
  damaged_ += std::ssize(news.damage);
  std::ranges::move(news.damage, std::back_inserter(damage_));
}

bool PushedSteps::is_ready(const Start& start, std::int64_t step) const {
  return start.waiting.size() > kMostWaiting ||
         std::ranges::all_of(start.ranks, [&](const auto& entry) {
           const Rank& rank = entry.second;
           return rank.told > step || (rank.told == step && rank.is_taken) ||
                  Clock::now() - rank.heard > kPatience;
         });
}

void PushedSteps::emit_ready(int restart, Start& start, bool all) {
  while (!start.waiting.empty()) {
    const auto next = start.waiting.begin();
    if (!all && !is_ready(start, next->first)) return;
    start.newest = next->first;
    emit(restart, start, next->first, next->second);
    start.waiting.erase(next);
  }
}

void PushedSteps::emit(int restart, Start& start, std::int64_t step,
                       const std::map<int, TailStep>& ranks) {
  // Of all steps, those that were given before, too. Steps that ended in one batch have one time.
  start.time_ns += kTimeApart;
  for (const auto& [number, rank] : ranks) {
    rows_dropped_ += rank.rows_lost;
    gaps_ += rank.gaps;
    start.time_ns = std::max(start.time_ns, rank.time_ns);
  }
  const auto has = position_.steps.find(start.id);
  if (has != position_.steps.end() && step <= has->second) return;
  PushedStep out{start.id, restart, step, start.time_ns, {}, 0};
  Values values;
  put_own(values, ranks);
  values[kLastStep] = static_cast<double>(step);
  const int lead = start.ranks.begin()->first;
  for (const auto& [number, rank] : ranks) {
    const int label = start.has_many_ranks ? number : -1;
    for (const auto& [name, value] : rank.scalars) {
      put(values, {Family::logged, "", printable(name), label}, number == lead, value);
    }
    for (const auto& [kind, norm] : rank.norms) {
      put(values, {Family::norm, printable(kind), "", label}, number == lead, norm);
    }
  }
  put_tensors(values, start, ranks);
  if (options_.newest_only && !ready_.empty()) {
    if (ready_.back().start == out.start) {
      values.insert(ready_.back().values.begin(), ready_.back().values.end());
    }
    ready_.clear();
  }
  out.values.assign(values.begin(), values.end());
  out.chosen = choice_.chosen().size();
  ready_.push_back(std::move(out));
}

void PushedSteps::put(Values& values, const PushedSeries& series, bool is_of_lead, double value) {
  if (const auto number = choice_.take(series, is_of_lead)) values[*number] = value;
}

void PushedSteps::put_own(Values& values, const std::map<int, TailStep>& ranks) {
  std::int64_t non_finite = 0, alerts = 0, skipped = 0;
  for (const auto& [number, rank] : ranks) {
    non_finite += rank.non_finite;
    alerts += rank.alert_count();
    skipped = std::max<std::int64_t>(
        skipped, rank.outcome.attempt + (rank.outcome.fate == Fate::skipped ? 1 : 0));
  }
  values[kNonFinite] = static_cast<double>(non_finite);
  values[kAlerts] = static_cast<double>(alerts);
  values[kSkipped] = static_cast<double>(skipped);
  values[kRowsDropped] = static_cast<double>(rows_dropped_);
  values[kGaps] = static_cast<double>(gaps_);
}

// Norms of layers, and of tensors that were the worst of a step. They are of the lowest rank and
// of any that saw what is not finite.
void PushedSteps::put_tensors(Values& values, Start& start, const std::map<int, TailStep>& ranks) {
  learn_tensors(start, ranks);
  const int lead = start.ranks.begin()->first;
  for (const auto& [number, rank] : ranks) {
    if (rank.tensors.empty() || (number != lead && rank.non_finite == 0)) continue;
    const PushedSeries worst{Family::tensor_norm, printable(rank.worst.kind), name_of(rank.worst),
                             start.has_many_ranks ? number : -1};
    const auto series = choice_.take(worst, number == lead);
    for (const auto& [tensor, norm] : rank.tensors) {
      if (*tensor == rank.worst) start.tensors.at(tensor).series = series;
    }
  }
  std::vector<std::optional<double>> sums(start.layers.size());
  for (const auto& [number, rank] : ranks) {
    for (const auto& [tensor, norm] : rank.tensors) {
      const Tensor& here = start.tensors.at(tensor);
      if (here.series) values[*here.series] = norm;
      if (start.layers[here.layer].rank != number) continue;
      sums[here.layer] = joined_norm(sums[here.layer].value_or(0.0), norm);
    }
  }
  for (std::size_t i = 0; i < sums.size(); ++i) {
    if (sums[i] && start.layers[i].series) values[*start.layers[i].series] = *sums[i];
  }
}

void PushedSteps::learn_tensors(Start& start, const std::map<int, TailStep>& ranks) {
  std::vector<std::pair<PushedSeries, std::size_t>> fresh;
  for (const auto& [number, rank] : ranks) {
    const int label = start.has_many_ranks ? number : -1;
    for (const auto& [tensor, norm] : rank.tensors) {
      if (start.tensors.contains(tensor)) continue;
      std::string name = layer_of(tensor->name);
      if (name.empty()) name = tensor->name.empty() ? "(root)" : tensor->name;
      if (tensor->chunk != 0) name = std::to_string(tensor->chunk) + ":" + name;
      const auto [layer, is_fresh] =
          start.layer_of.try_emplace({tensor->kind, name}, start.layers.size());
      if (is_fresh) {
        start.layers.push_back({number, std::nullopt});
        fresh.push_back(
            {{Family::layer_norm, printable(tensor->kind), printable(name), label}, layer->second});
      }
      const PushedSeries own{Family::tensor_norm, printable(tensor->kind), name_of(*tensor), label};
      start.tensors[tensor] = {layer->second, choice_.number_of(own)};
    }
  }
  choose_layers(start, fresh);
}

// Kind by kind, gradients first; where there is no room for all layers of a kind, evenly.
void PushedSteps::choose_layers(Start& start,
                                const std::vector<std::pair<PushedSeries, std::size_t>>& fresh) {
  std::map<std::pair<std::size_t, std::string>, std::vector<std::size_t>> kinds;
  for (std::size_t i = 0; i < fresh.size(); ++i) {
    kinds[{order_of_kind(fresh[i].first.kind), fresh[i].first.kind}].push_back(i);
  }
  for (const auto& [kind, all] : kinds) {
    const std::size_t room = std::min(choice_.room_for_layers(), all.size());
    const auto take = [&](std::size_t at) {
      start.layers[fresh[all[at]].second].series = choice_.take(fresh[all[at]].first, true);
    };
    for (std::size_t i = 0; i < room; ++i) take(i * all.size() / room);
    for (std::size_t i = 0; i < all.size(); ++i) take(i);
  }
}

}  // namespace trainmon
