// One pass over the rows, a rank at a time.
#include "answers/jumping_lines.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <map>
#include <set>
#include <span>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "answers/diagnose.h"
#include "answers/rank_lines.h"
#include "answers/trend_jump.h"
#include "base/made_ahead.h"
#include "model/kinds.h"
#include "read/run_stream.h"

namespace trainmon {
namespace {

constexpr std::size_t kJumpRows = TrendJump::kWindow;
constexpr std::size_t kSeveralJumps = 4;  // tensors of a step, where none is clear
constexpr std::size_t kMostJumpRanks = 16;
constexpr std::int64_t kJumpNear = 16;  // steps
constexpr double kNamedShare = 0.5;     // of the most errors of a step: the first of those is named

// Of a line on a rank.
struct JumpOfLine {
  TrendJump jump;
  Sample first = {};  // behind it
  int rank = 0;
  std::uint32_t series = 0;
  std::optional<std::uint32_t> over = {};  // whose root mean square its own is divided by
  bool is_over_kind = false;               // or the mean of its kind
  Measure measure = Measure::jump;
  std::uint64_t order = 0;  // of lines in a step
};

bool may_jump(std::string_view kind) {
  return kind == kind::kInput || kind == kind::kActv || kind == kind::kActvGrad ||
         kind == kind::kGradReduced;
}

using SampleNumber = double (*)(const Sample&);
double log_rms_of(const Sample& one) {
  return one.numbers[kLogRms];
}
double zeros_of(const Sample& one) {
  return one.numbers[kZeros];
}

// All that jumps of the lines of one rank.
class RankJumps {
 public:
  RankJumps(const RankLines& rank, const std::vector<Series>& series, std::vector<JumpOfLine>& all,
            std::set<std::int64_t>& resized)
      : rank_(rank), series_(series), all_(all), resized_(resized) {
    for (std::size_t tensor = 0; tensor < rank.lines.size(); ++tensor) {
      if (!rank.lines[tensor].empty()) order_.push_back(tensor);
    }
    std::ranges::stable_sort(order_, {}, [&](std::size_t tensor) {
      return std::pair(kind_of(tensor), rank.lines[tensor].front().seq);
    });
  }

  void find() {
    for (std::size_t begin = 0, end = 0; begin < order_.size(); begin = end) {
      while (end < order_.size() && kind_of(order_[end]) == kind_of(order_[begin])) ++end;
      const std::span<const std::size_t> of_kind(order_.data() + begin, end - begin);
      for (const std::size_t tensor : of_kind) {
        note_resized(tensor);
        add(tensor, numbers_of(tensor, log_rms_of), {});
        add_zeros(tensor);
        if (kind_of(tensor) == kind::kActvGrad) add_balance(tensor);
      }
      for (std::size_t i = 1; i < of_kind.size(); ++i) add_over(of_kind[i], of_kind[i - 1]);
      if (kind_of(of_kind.front()) != kind::kActv) add_over_kind(of_kind);
    }
  }

 private:
  const std::string& kind_of(std::size_t tensor) const {
    return series_[rank_.series[tensor]].kind;
  }
  std::vector<double> numbers_of(std::size_t tensor, SampleNumber number) const {
    std::vector<double> numbers;
    for (const Sample& one : rank_.lines[tensor]) numbers.push_back(number(one));
    return numbers;
  }

  // Steps from which on batches have another size: all had one before, and have one behind.
  void note_resized(std::size_t tensor) {
    const std::vector<Sample>& line = rank_.lines[tensor];
    const auto count = [](const Sample& one) {
      return std::lround(1e3 * (one.numbers[0] - one.numbers[kLogRms]));
    };
    const auto is_one = [&](std::size_t begin, std::size_t end) {
      return std::all_of(line.begin() + static_cast<std::ptrdiff_t>(begin),
                         line.begin() + static_cast<std::ptrdiff_t>(end),
                         [&](const Sample& one) { return count(one) == count(line[begin]); });
    };
    for (std::size_t at = kJumpRows; at + kJumpRows <= line.size(); ++at) {
      if (count(line[at]) == count(line[at - 1])) continue;
      if (is_one(at - kJumpRows, at) && is_one(at, at + kJumpRows)) resized_.insert(line[at].step);
    }
  }

  // `samples`: those that the numbers are of; empty: all of the line.
  void add(std::size_t tensor, const std::vector<double>& numbers, const JumpOfLine& like,
           std::span<const Sample> samples = {}) {
    const std::span<const Sample> line = samples.empty() ? rank_.lines[tensor] : samples;
    for (const TrendJump& jump : trend_jumps(numbers)) {
      JumpOfLine& one = all_.emplace_back(like);
      one.jump = jump;
      one.first = line[jump.at];
      one.rank = rank_.rank;
      one.series = rank_.series[tensor];
      one.order = rank_.lines[tensor].front().seq;
    }
  }
  void add_zeros(std::size_t tensor) {
    const std::vector<double> numbers = numbers_of(tensor, zeros_of);
    JumpOfLine like;
    like.measure = Measure::jump_of_zeros;
    if (std::ranges::any_of(numbers, [](double one) { return one > 0.0; })) {
      add(tensor, numbers, like);
    }
  }
  // A mean that is 0 but for rounding, as behind a batch norm, and that was not, or is no more.
  void add_balance(std::size_t tensor) {
    static const double kZero = std::log(1e-6), kOther = std::log(1e-5);
    const auto balance = [](const Sample& one) {
      return std::log(std::max(1e-9, std::abs(static_cast<double>(one.numbers[1]))));
    };
    JumpOfLine like;
    like.measure = Measure::balance;
    const auto known = static_cast<std::ptrdiff_t>(all_.size());
    add(tensor, numbers_of(tensor, balance), like);
    const auto is_none = [](const JumpOfLine& one) {
      const auto [least, most] = std::minmax(one.jump.before, one.jump.after);
      return least > kZero || most < kOther;
    };
    all_.erase(std::remove_if(all_.begin() + known, all_.end(), is_none), all_.end());
  }
  void add_over(std::size_t tensor, std::size_t before) {
    std::vector<double> numbers;
    std::vector<Sample> samples;
    for (const auto& [one, other] : pairs_of_steps(rank_.lines[tensor], rank_.lines[before])) {
      numbers.push_back(log_rms_of(*one) - log_rms_of(*other));
      samples.push_back(*one);
    }
    JumpOfLine like;
    like.over = rank_.series[before];
    add(tensor, numbers, like, samples);
  }
  // Over the mean of those that have all steps.
  void add_over_kind(std::span<const std::size_t> of_kind) {
    const auto rows = [&](std::size_t tensor) { return rank_.lines[tensor].size(); };
    const std::size_t longest = std::ranges::max(of_kind, {}, rows);
    std::vector<std::size_t> whole;
    for (const std::size_t tensor : of_kind) {
      if (std::ranges::equal(rank_.lines[tensor], rank_.lines[longest], {}, &Sample::step,
                             &Sample::step)) {
        whole.push_back(tensor);
      }
    }
    if (whole.size() < kSeveralJumps) return;
    std::vector<double> mean(rows(longest));
    for (const std::size_t tensor : whole) {
      for (std::size_t i = 0; i < mean.size(); ++i) {
        mean[i] += log_rms_of(rank_.lines[tensor][i]) / static_cast<double>(whole.size());
      }
    }
    JumpOfLine like;
    like.is_over_kind = true;
    for (const std::size_t tensor : whole) {
      std::vector<double> numbers = numbers_of(tensor, log_rms_of);
      for (std::size_t i = 0; i < mean.size(); ++i) numbers[i] -= mean[i];
      add(tensor, numbers, like);
    }
  }

  const RankLines& rank_;
  const std::vector<Series>& series_;
  std::vector<JumpOfLine>& all_;
  std::set<std::int64_t>& resized_;  // steps
  std::vector<std::size_t> order_;   // by kind, in the order of a step
};

using StepOfStart = std::pair<std::int32_t, std::int64_t>;
using JumpsOfSteps = std::map<StepOfStart, std::vector<const JumpOfLine*>>;

// Tensors with a jump, of which a number may jump in several ways.
std::size_t tensors_of(const std::vector<const JumpOfLine*>& jumps) {
  std::set<std::pair<int, std::uint32_t>> tensors;
  for (const JumpOfLine* one : jumps) tensors.emplace(one->rank, one->series);
  return tensors.size();
}

bool counts_jumps(const std::vector<const JumpOfLine*>& jumps) {
  return tensors_of(jumps) >= kSeveralJumps ||
         std::ranges::any_of(jumps, [](const JumpOfLine* one) { return one->jump.is_clear(); });
}

double clearest_of(const std::vector<const JumpOfLine*>& jumps) {
  return (*std::ranges::max_element(jumps, {},
                                    [](const JumpOfLine* one) { return one->jump.errors; }))
      ->jump.errors;
}

// The step in which most tensors jump.
const std::vector<const JumpOfLine*>* named_jumps(const JumpsOfSteps& steps) {
  const std::vector<const JumpOfLine*>* best = nullptr;
  const auto size = [](const auto& jumps) {
    return std::pair(tensors_of(jumps), clearest_of(jumps));
  };
  for (const auto& [step, jumps] : steps) {
    if (counts_jumps(jumps) && (best == nullptr || size(jumps) > size(*best))) best = &jumps;
  }
  return best;
}

// The ranks on which half as many tensors jump as on the one with most. What is the same on all
// ranks tells none.
std::vector<int> ranks_of_jumps(const RunRows& facts, const std::vector<const JumpOfLine*>& jumps) {
  std::map<int, std::size_t> own, any;
  for (const JumpOfLine* one : jumps) {
    ++any[one->rank];
    if (facts.series[one->series].replication != Replication::identical) ++own[one->rank];
  }
  const std::map<int, std::size_t>& all = own.empty() ? any : own;
  std::size_t most = 0;
  for (const auto& [rank, count] : all) most = std::max(most, count);
  std::vector<int> ranks;
  for (const auto& [rank, count] : all) {
    if (2 * count >= most) ranks.push_back(rank);
  }
  return ranks;
}

LeftStep step_of_jumps(const RunRows& facts, std::vector<const JumpOfLine*> jumps) {
  LeftStep step;
  step.lines = tensors_of(jumps);
  step.ranks = ranks_of_jumps(facts, jumps);
  std::erase_if(jumps, [&](const JumpOfLine* one) { return one->rank != step.ranks.front(); });
  const auto place = [&](const JumpOfLine* one) {
    return std::tuple(stage_of_kind(facts.series[one->series].kind), one->order);
  };
  std::ranges::stable_sort(jumps, {}, place);
  const double least = kNamedShare * clearest_of(jumps);
  const auto first =
      std::ranges::find_if(jumps, [&](const JumpOfLine* one) { return one->jump.errors >= least; });
  const JumpOfLine& named = **first;
  step.row.restart = named.first.restart;
  step.row.rank = named.rank;
  step.row.step = named.first.step;
  step.row.seq = named.first.seq;
  step.series = facts.series[named.series];
  step.measure = named.measure;
  step.is_difference = named.measure == Measure::jump_of_zeros;
  const auto number = [&](double one) { return step.is_difference ? one : std::exp(one); };
  step.norm = number(named.jump.after);
  step.usual = number(named.jump.before);
  step.apart = number(std::abs(named.jump.jump));
  step.score = named.jump.errors;
  step.means = static_cast<int>(kJumpRows);
  if (named.over) step.over = facts.series[*named.over];
  if (named.is_over_kind) {
    step.over = step.series;
    step.over->element = kAllTensors;
  }
  std::set<std::uint32_t> said = {named.series};
  for (auto next = first + 1; next != jumps.end() && step.next.size() + 1 < kNamedLines; ++next) {
    if (said.insert((*next)->series).second) step.next.push_back(facts.series[(*next)->series]);
  }
  return step;
}

bool is_explained(const Diagnosis& diagnosis, std::int64_t step) {
  return diagnosis.control_steps.contains(step) ||
         std::ranges::any_of(diagnosis.findings, [&](const detect::Finding& one) {
           return std::abs(one.step - step) <= kJumpNear;
         });
}

}  // namespace

std::optional<LeftStep> jumping_lines(const OpenedRun& run, ReadOptions options,
                                      const Diagnosis& diagnosis) {
  if (diagnosis.verdict) return std::nullopt;
  options.all_restarts = options.merged = false;
  if (options.ranks.empty()) {
    options.ranks = diagnosis.run.ranks;
    options.ranks.resize(std::min(options.ranks.size(), kMostJumpRanks));
  }
  const RunStream stream(run, options);
  const RunRows& facts = stream.facts();
  const TensorNumbers tensors(facts.series);
  std::vector<JumpOfLine> all;
  std::set<std::int64_t> resized;
  RankLines now(-1, 0);
  const auto begin_rank = [&](int rank) {
    if (now.rank >= 0) RankJumps(now, facts.series, all, resized).find();
    now = RankLines(rank, tensors.count);
  };
  const std::vector<RunStream::Piece>& pieces = stream.pieces();
  const auto read = [&](std::size_t i) { return line_values(stream, pieces[i]); };
  MadeAhead<std::vector<LineValue>> ahead(pieces.size(), threads_with_pieces(options.threads),
                                          read);
  for (std::size_t i = 0; const auto piece = ahead.next(); ++i) {
    if (pieces[i].rank != now.rank) begin_rank(pieces[i].rank);
    for (const LineValue& value : *piece) {
      if (may_jump(facts.series[value.series].kind)) now.add(tensors.of[value.series], value);
    }
  }
  begin_rank(-1);
  JumpsOfSteps steps;
  const auto is_resized = [&](std::int64_t step) {
    const auto near = resized.lower_bound(step - 1);
    return near != resized.end() && *near <= step + 1;
  };
  for (const JumpOfLine& one : all) {
    if (!is_explained(diagnosis, one.first.step) && !is_resized(one.first.step)) {
      steps[{one.first.restart, one.first.step}].push_back(&one);
    }
  }
  const auto* const named = named_jumps(steps);
  if (named == nullptr) return std::nullopt;
  LeftStep step = step_of_jumps(facts, *named);
  const bool is_of_some = facts.ranks.size() > 1 && step.ranks.size() < facts.ranks.size();
  const bool is_own = step.series.replication == Replication::disjoint;
  if (is_of_some && is_own) step.before = Unmoved::ranks;
  return step;
}

void add_jumping_lines(std::optional<LeftHistory>& found, const OpenedRun& run,
                       const ReadOptions& options, const Diagnosis& diagnosis) {
  constexpr std::size_t kMore = 4;
  std::optional<LeftStep> jumps = jumping_lines(run, options, diagnosis);
  if (!jumps) return;
  const auto is_near = [&](const LeftStep& one) {
    return std::abs(one.row.step - jumps->row.step) <= kJumpNear;
  };
  // What the model is given comes before whatever follows.
  const bool is_cause =
      found && found->series.kind == kind::kInput && found->row.step < jumps->row.step;
  if (found && !is_cause && !is_near(*found) && jumps->lines >= kMore * found->lines) {
    LeftStep before = std::move(static_cast<LeftStep&>(*found));
    std::vector<LeftStep> others = std::move(found->others);
    std::erase_if(others, is_near);
    found = LeftHistory{std::move(*jumps), std::move(others)};
    add_unless([](const LeftStep&) { return false; }, std::move(before), found);
    return;
  }
  add_unless(is_near, std::move(*jumps), found);
}

}  // namespace trainmon
