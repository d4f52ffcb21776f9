#include "answers/left_history.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <functional>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

#include "answers/apart_ranks.h"
#include "answers/common_modules.h"
#include "answers/diagnose.h"
#include "answers/input_means.h"
#include "answers/jumping_lines.h"
#include "answers/left_losses.h"
#include "answers/small_steps.h"
#include "base/made_ahead.h"
#include "base/text.h"
#include "model/first_bad.h"
#include "model/kinds.h"
#include "read/bad_place.h"
#include "read/run_stream.h"

namespace trainmon {
namespace {

// What features measure of small tensors is too coarse to tell. An optimizer's state follows from
// gradients, whose squares leave their history where the gradients themselves do not.
bool can_tell(std::string_view kind, bool has_gradients) {
  if (kind == kind::kMgDirection || kind == kind::kActvRecomputed || is_canary(kind)) return false;
  const Kind* known = known_kind(kind);
  if (known == nullptr) return true;
  if (known->is_state) return !has_gradients;
  return known->group != "attention" && known->group != "spectral" && known->group != "router";
}

using Ahead = std::vector<LineValue>;  // of the rows of a piece

}  // namespace

LeftSteps::LeftSteps(const RunRows& facts, const Diagnosis& diagnosis)
    : facts_(facts), diagnosis_(diagnosis) {
  if (diagnosis_.verdict) return;
  take_losses();
  // The model's own output is that of its last module, which has a row, too. Series are in the
  // order of their first rows.
  constexpr std::size_t kFirst = 2;
  for (const Series& series : facts_.series) {
    const bool is_output = series.kind == kind::kActvGrad && series.element.starts_with("output");
    if (!is_output) continue;
    if (last_modules_.size() < kFirst) {
      last_modules_.push_back(series.name);
    } else {
      behind_last_ = series.name;
      break;
    }
  }
}

bool LeftSteps::is_of_last_module(const Series& series) const {
  const std::string_view name = series.name;
  const std::string_view module = series.kind == kind::kActvGrad
                                      ? name
                                      : name.substr(0, std::min(name.rfind('.'), name.size()));
  return (series.kind == kind::kActvGrad || !module.empty()) &&
         std::ranges::find(last_modules_, module) != last_modules_.end();
}

// Gradients of other inputs or targets may add up to another norm where each is as large as before.
// Then a loss or a finding tells.
Unmoved LeftSteps::unmoved_before(const Step& step, const Line& first) const {
  constexpr std::size_t kSeveral = 4;
  constexpr double kFar = 1.5;
  const auto& [left, series] = first;
  if (!is_gradient(series->kind) || left.measure >= Measure::rows) return Unmoved::unknown;
  // Zeros of the last modules do not count.
  const bool is_next = left.measure == Measure::zeros && series->kind == kind::kActvGrad &&
                       series->name == behind_last_;
  if (has_rows_of(kind::kActv) && (is_next || is_of_last_module(*series))) return Unmoved::forward;
  const double apart = std::abs(std::log(left.row.value / left.row.usual));
  const bool has_finding = std::ranges::any_of(
      diagnosis_.findings, [&](const auto& one) { return one.step == left.row.row.step; });
  const bool is_clear =
      step.lines >= kSeveral && step.losses.empty() && !has_finding && apart >= std::log(kFar);
  const bool is_behind = series->kind == kind::kGradReduced && has_rows_of(kind::kActvGrad);
  return is_clear && is_behind ? Unmoved::backward : Unmoved::unknown;
}

void LeftSteps::take(const LeftLines& rank) {
  if (diagnosis_.verdict) return;
  const bool has_gradients = has_rows_of(kind::kGradReduced);
  for (const auto& [tensor, left] : rank.left()) {
    const Series& series = facts_.series[left.series];
    if (can_tell(series.kind, has_gradients)) take(left, left.series, series, steps_);
  }
  // It goes with a norm that left as far back.
  for (const auto& [shift, number, measure, is_spread] : rank.shifts_of_lines()) {
    const bool has_logarithm = is_spread || measure == Measure::norm || measure == Measure::balance;
    LeftLines::Left left = left_of(shift, has_logarithm ? 0.0 : 1.0);
    left.measure = measure;
    left.is_spread = is_spread;
    const auto known = rank.left().find(rank.tensors().of[number]);
    const bool has_norm = known != rank.left().end() &&
                          known->second.row.row.restart == left.row.row.restart &&
                          known->second.row.row.step <= left.row.row.step;
    if (!has_norm) take(left, number, facts_.series[number], steps_);
  }
  for (const auto& [shift, number] : rank.shifts()) {
    Series& series = norms_[{facts_.series[number].kind, facts_.series[number].optimizer}];
    series.kind = facts_.series[number].kind;
    series.optimizer = facts_.series[number].optimizer;
    series.replication = facts_.series[number].replication;
    series.element = kAllTensors;
    take(left_of(shift, 0.0), number, series, norm_steps_);
  }
}

void LeftSteps::take_losses() {
  auto number = static_cast<std::uint32_t>(facts_.series.size());
  for (const LeftLossLines& loss : left_losses(facts_.scalars)) {
    Series& series = losses_.emplace_back();
    series.kind = kLogged;
    series.name = loss.name;
    for (const LeftLines::Left& left : loss.lines) take(left, number, series, steps_);
    ++number;
  }
}

void LeftSteps::take(const LeftLines::Left& left, std::uint32_t number, const Series& series,
                     Steps& steps) {
  const RowPlace& row = left.row.row;
  // `input_grads` and `reread` may be changed while a training runs.
  const bool is_asked_for =
      left.measure == Measure::rows && diagnosis_.control_steps.contains(row.step);
  // Of ids that never come a gradient of logits gets so small that it counts as zero.
  const bool is_of_logits =
      left.measure == Measure::zeros && series.kind == kind::kActvGrad && is_of_last_module(series);
  if (is_asked_for || is_of_logits || has_reason(row.step, series)) return;
  Step& step = steps[{row.restart, row.step}];
  std::vector<std::string> modules = modules_of(series.name);
  if (step.lines++ == 0) {
    step.module = std::move(modules);
  } else {
    keep_common(step.module, modules);
  }
  Furthest& furthest = step.tensors[number];
  const double far =
      left.unit > 0.0 ? left.apart : std::abs(std::log(left.row.value / left.row.usual));
  const bool is_furthest = furthest.ranks.empty() || far > furthest.far;
  if (is_furthest) {
    furthest.rank = row.rank;
    furthest.far = far;
  }
  furthest.ranks.push_back(row.rank);
  if (is_furthest && series.kind == kLogged) step.losses[number] = {left, &series};
  if (series.replication != Replication::identical) ++step.own[row.rank];
  step.has_shift |= left.means > 0 && series.kind == kLogged;
  const bool is_activation = series.kind == kind::kActv || series.kind == kind::kActvGrad;
  step.of_start += is_activation && left.begins && left.means > 0 ? 1 : 0;
  keep_first({left, &series}, step.first[row.rank]);
}

void LeftSteps::keep_first(const Line& line, std::vector<Line>& first) const {
  const auto place = [&](const Line& one) {
    return place_of(facts_, one.left.row.row, *one.series);
  };
  first.insert(std::ranges::upper_bound(first, place(line), std::ranges::less(), place), line);
  if (first.size() > kNamedLines) first.pop_back();
}

// Rows that are the same on all ranks tell no rank.
std::vector<int> LeftSteps::ranks_of(const Step& step) {
  std::size_t most = 0;
  for (const auto& [rank, lines] : step.own) most = std::max(most, lines);
  std::vector<int> ranks;
  for (const auto& [rank, lines] : step.first) {
    const auto own = step.own.find(rank);
    if (most == 0 || (own != step.own.end() && 2 * own->second >= most)) ranks.push_back(rank);
  }
  return ranks;
}

int LeftSteps::rank_of(const Step& step, const std::vector<int>& ranks) {
  // Alone first, then far, then of a small rank.
  const auto order = [&](const auto& one) {
    const Furthest& furthest = one.second;
    return std::tuple(std::ranges::binary_search(ranks, furthest.rank), furthest.ranks.size() == 1,
                      furthest.far, -furthest.rank);
  };
  return std::ranges::max_element(step.tensors, {}, order)->second.rank;
}

// Of many lines one alone that hardly leaves its range. An input or a loss is no line of many. The
// step of one tensor alone follows from a gradient that may be rounding, as of a bias of keys.
// Of many that a start might have changed a few have other means.
bool LeftSteps::may_be_chance(const Step& step) {
  static const double kAlone = std::log(1.25);
  constexpr std::size_t kFew = 3;
  if (step.of_start == step.lines && step.lines < kFew) return true;
  if (step.lines > 1) return false;
  const auto& [left, series] = step.first.begin()->second.front();
  if (series->kind == kind::kUpdate) return true;
  const bool is_of_many = series->kind != kLogged && series->kind != kind::kInput &&
                          series->kind != kind::kInputEntropy && series->element != kAllTensors;
  const double apart = left.unit > 0.0 || left.apart == 0.0 ? left.apart : std::log(left.apart);
  const bool are_new_zeros = left.measure == Measure::zeros && left.row.usual == 0.0;
  return is_of_many && !are_new_zeros && apart > 0.0 && apart < kAlone;
}

// Whether only some of the ranks have a step, though all have the weights and a part of the batch.
bool LeftSteps::is_shared(const LeftStep& one) const {
  const auto is_part = [](const Series& series) {
    const bool is_of_backward = series.kind == kind::kActv || series.kind == kind::kActvGrad;
    return (is_of_backward && series.replication == Replication::disjoint) ||
           (series.kind == kind::kGradUnreduced && series.replication == Replication::partial);
  };
  if (one.ranks.size() >= facts_.ranks.size()) return false;
  return is_part(one.series) ||
         (one.series.kind == kLogged && std::ranges::any_of(facts_.series, is_part));
}

LeftStep LeftSteps::whole(const Step& step) const {
  LeftStep one;
  one.ranks = ranks_of(step);
  const std::vector<Line>& first = step.first.at(rank_of(step, one.ranks));
  const auto& [left, series] = first.front();
  one.row = left.row.row;
  one.row.shape = nullptr;
  one.series = *series;
  one.norm = left.row.value;
  one.usual = left.row.usual;
  one.score = left.row.score;
  one.measure = left.measure;
  one.is_spread = left.is_spread;
  one.is_difference = left.unit > 0.0;
  one.apart = one.is_difference ? left.apart * left.unit : left.apart;
  one.again = left.again;
  one.means = left.means;
  one.begins = left.begins;
  one.lines = step.lines;
  if (one.lines > 1) one.module = module_text(step.module);
  for (const Line& line : std::span(first).subspan(1)) {
    if (line.series->kind != kLogged) one.next.push_back(*line.series);
  }
  one.before = unmoved_before(step, first.front());
  const bool is_loss = series->kind == kLogged;
  if (one.before == Unmoved::unknown) {
    if (is_loss && has_rows_of(kind::kActv)) one.before = Unmoved::forward;
    if (is_shared(one)) one.before = Unmoved::ranks;
  }
  if (is_loss || step.losses.empty()) return one;
  const auto far = [&](const auto& loss) { return step.tensors.at(loss.first).far; };
  const auto& [number, loss] = *std::ranges::max_element(step.losses, {}, far);
  one.loss = {loss.series->name, loss.left.row.value, loss.left.row.usual,
              step.tensors.at(number).ranks};
  std::ranges::sort(one.loss->ranks);
  return one;
}

// A line may leave by chance, a loss hardly shifts by chance. And soon after a step more lines may
// leave, as a consequence.
std::optional<LeftHistory> LeftSteps::found() const {
  constexpr std::size_t kShare = 4, kOthers = 3;
  constexpr auto kSoon = static_cast<std::int64_t>(History::kMost);
  const auto chosen = [](const Steps& left) {
    std::vector<Steps::const_iterator> steps;
    for (auto at = left.begin(); at != left.end(); ++at) {
      if (!may_be_chance(at->second)) steps.push_back(at);
    }
    return steps;
  };
  std::vector<Steps::const_iterator> steps = chosen(steps_);
  if (steps.empty()) steps = chosen(norm_steps_);
  if (steps.empty()) return std::nullopt;
  const auto tensors = [](const auto& at) { return at->second.tensors.size(); };
  const auto most = *std::ranges::max_element(steps, {}, tensors);
  const auto is_first = [&](const auto& at) {
    const auto& [restart, step] = at->first;
    const bool is_shortly_before = restart == most->first.first &&
                                   step >= most->first.second - kSoon &&
                                   kShare * tensors(at) >= tensors(most);
    return is_shortly_before || at->second.has_shift;
  };
  const auto first = std::ranges::find_if(steps, is_first);
  LeftHistory found = {whole((*first)->second), {}};
  steps.erase(first);
  std::ranges::stable_sort(steps, std::ranges::greater(), tensors);
  steps.resize(std::min(steps.size(), kOthers));
  for (const auto& at : steps) found.others.push_back(whole(at->second));
  std::ranges::sort(found.others, {}, [](const LeftStep& one) { return one.row.step; });
  return found;
}

bool LeftSteps::has_rows_of(std::string_view kind) const {
  return std::ranges::find(facts_.kinds, kind) != facts_.kinds.end();
}

bool LeftSteps::has_reason(std::int64_t step, const Series& series) const {
  constexpr auto kBefore = static_cast<std::int64_t>(History::kMost);
  return std::ranges::any_of(diagnosis_.findings, [&](const detect::Finding& found) {
    if (found.step > step || found.step < step - kBefore) return false;
    // Other inputs change many lines, which tell more than the inputs alone.
    if (found.check == detect::Check::input && !found.certain) {
      return series.kind == kind::kInputEntropy;
    }
    return found.tensors.empty() || std::ranges::any_of(found.tensors, [&](std::uint32_t tensor) {
             const detect::Tensor& named = diagnosis_.tensors[tensor];
             return named.name == series.name && named.chunk == series.chunk;
           });
  });
}

std::vector<LineValue> line_values(const RunStream& stream, const RunStream::Piece& piece) {
  std::vector<LineValue> values;
  RunStream::Take take;
  take.row = [&](const ReadRow& row) {
    if (const auto value = line_value(row, stream.facts().series[row.series])) {
      values.push_back(*value);
    }
  };
  constexpr std::array kStats = {Stat::norm, Stat::count, Stat::mean, Stat::max, Stat::zeros};
  take.columns = columns_of(std::span<const Stat>(kStats));
  std::vector<Damage> said_before;
  stream.read(piece, take, said_before);
  return values;
}

std::optional<LeftHistory> left_history(const OpenedRun& run, ReadOptions options,
                                        const Diagnosis& diagnosis) {
  if (diagnosis.verdict) return std::nullopt;
  options.all_restarts = options.merged = false;
  const RunStream stream(run, options);
  const std::vector<Series>& series = stream.facts().series;
  const std::vector<RunStream::Piece>& pieces = stream.pieces();
  LeftSteps steps(stream.facts(), diagnosis);
  LeftLines lines(series);
  const auto end_rank = [&] {
    lines.end_rank([](std::uint32_t, const Unusual<RowPlace>&) {});
    steps.take(lines);
    lines.forget();
  };
  const auto read = [&](std::size_t i) { return line_values(stream, pieces[i]); };
  MadeAhead<Ahead> ahead(pieces.size(), threads_with_pieces(options.threads), read);
  for (std::size_t i = 0; const std::optional<Ahead> piece = ahead.next(); ++i) {
    if (i > 0 && pieces[i].rank != pieces[i - 1].rank) end_rank();
    for (const LineValue& value : *piece) lines.add(value);
  }
  end_rank();
  std::optional<LeftHistory> found = steps.found();
  add_means(found, run, options, diagnosis);
  return found;
}

void add_unless(const std::function<bool(const LeftStep&)>& is_told, LeftStep step,
                std::optional<LeftHistory>& to) {
  if (!to) {
    to = LeftHistory{std::move(step), {}};
    return;
  }
  if (is_told(*to) || std::ranges::any_of(to->others, is_told)) return;
  to->others.push_back(std::move(step));
  std::ranges::stable_sort(to->others, {}, [](const LeftStep& one) { return one.row.step; });
}

void add_means(std::optional<LeftHistory>& found, const OpenedRun& run, const ReadOptions& options,
               const Diagnosis& diagnosis) {
  add_jumping_lines(found, run, options, diagnosis);
  add_small_steps(found, run, options);
  add_input_means(found, run, options, diagnosis);
  add_apart_ranks(found, run, options, diagnosis);
}

}  // namespace trainmon
