#include "answers/apart_ranks.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <map>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "answers/diagnose.h"
#include "answers/rank_lines.h"
#include "base/made_ahead.h"
#include "model/kinds.h"
#include "read/run_stream.h"

namespace trainmon {
namespace {

constexpr std::size_t kLeast = 32, kMost = 256;  // rows on either side
constexpr std::size_t kFew = 16;      // of those: in them the training itself changes little
constexpr double kApartErrors = 7.0;  // standard errors between their means
constexpr double kShare = 0.7;        // of it lies between kFew rows and those before
constexpr double kNearly = 0.8;  // of the errors of the clearest line: those that may be the first
constexpr std::int64_t kNear = 16;  // steps

// Of two ranks and one line.
struct Apart {
  double errors = 0.0;
  double before = 0.0, after = 0.0;  // numbers of `rank`, less those of `beside`
  std::size_t rows = 0;              // behind the step
  double change = 0.0;  // the size of that of `rank` at the step, less that of `beside`
  Sample first = {};    // of `rank`, behind the step
  Sample first_beside = {};
  int rank = 0, beside = 0;
  std::uint64_t order = 0;  // of lines in a step
  std::uint32_t series = 0;
  Measure measure = Measure::norm;
};

// Where the difference of two lines changes most clearly. Errors below kApartErrors: nowhere.
Apart apart_of(const std::vector<Sample>& one, const std::vector<Sample>& other,
               std::size_t measure) {
  const auto pairs = pairs_of_steps(one, other);
  Sums difference, of_one, of_other;
  for (const auto& [a, b] : pairs) {
    const double x = a->numbers[measure], y = b->numbers[measure];
    difference.add(x - y);
    of_one.add(x);
    of_other.add(y);
  }
  Apart found;
  for (std::size_t at = kLeast; at + kLeast <= pairs.size(); ++at) {
    const std::size_t begin = at - std::min(at, kMost), end = std::min(pairs.size(), at + kMost);
    const double before = difference.mean(begin, at), after = difference.mean(at, end);
    const double apart = after - before, errors = difference.errors_between(begin, at, end);
    if (errors < std::max(kApartErrors, found.errors)) continue;
    if (!difference.is_level(begin, at, apart) || !difference.is_level(at, end, apart)) continue;
    const double jump = difference.mean(at, at + kFew) - difference.mean(at - kFew, at);
    if (jump / apart < kShare) continue;
    const auto change = [&](const Sums& of) {
      return std::abs(of.mean(at, at + kFew) - of.mean(at - kFew, at));
    };
    found = {errors,           before,           after, end - at, change(of_one) - change(of_other),
             *pairs[at].first, *pairs[at].second};
  }
  return found;
}

// Of a rank and the one before it.
void add_apart(const RankLines& one, const RankLines& other, std::vector<Apart>& all) {
  for (std::size_t tensor = 0; tensor < one.lines.size(); ++tensor) {
    for (std::size_t i = 0; i < kMeasures.size(); ++i) {
      Apart found = apart_of(one.lines[tensor], other.lines[tensor], i);
      if (found.errors < kApartErrors) continue;
      found.rank = one.rank;
      found.beside = other.rank;
      found.order = one.lines[tensor].front().seq;
      found.series = one.series[tensor];
      found.measure = kMeasures[i];
      all.push_back(found);
    }
  }
}

// What was noticed near it is why.
bool is_noticed_near(const Diagnosis& diagnosis, std::int64_t step) {
  return std::ranges::any_of(diagnosis.findings, [&](const detect::Finding& one) {
    return std::abs(one.step - step) <= kNear;
  });
}

Apart turned(const Apart& one) {
  Apart other = one;
  std::swap(other.rank, other.beside);
  std::swap(other.first, other.first_beside);
  other.before = -one.before;
  other.after = -one.after;
  return other;
}

// It parts from both of its neighbours. Of two ranks it is the one that changed more.
int parting_rank(const std::vector<Apart>& all) {
  std::map<int, std::set<int>> neighbours;
  std::map<int, double> changes;
  for (const Apart& one : all) {
    neighbours[one.rank].insert(one.beside);
    neighbours[one.beside].insert(one.rank);
    // A line that is clear tells it more clearly.
    changes[one.rank] += std::copysign(one.errors, one.change);
    changes[one.beside] -= std::copysign(one.errors, one.change);
  }
  const auto order = [&](const auto& one) {
    return std::tuple(one.second.size(), changes[one.first], -one.first);
  };
  return std::ranges::max_element(neighbours, {}, order)->first;
}

// All that part near the step of the clearest line. The first of those that are as clear is named.
std::optional<LeftStep> named_step(const RunRows& facts, const Diagnosis& diagnosis,
                                   std::vector<Apart> all) {
  std::erase_if(all, [&](const Apart& one) { return is_noticed_near(diagnosis, one.first.step); });
  if (all.empty()) return std::nullopt;
  const Apart clearest = *std::ranges::max_element(all, {}, &Apart::errors);
  std::erase_if(all, [&](const Apart& one) {
    return std::abs(one.first.step - clearest.first.step) > kNear;
  });
  const int rank = parting_rank(all);
  std::erase_if(all, [&](const Apart& one) { return one.rank != rank && one.beside != rank; });
  for (Apart& one : all) {
    if (one.rank != rank) one = turned(one);
  }
  const double least = kNearly * std::ranges::max_element(all, {}, &Apart::errors)->errors;
  std::ranges::stable_sort(all, {}, &Apart::order);
  const auto first =
      std::ranges::find_if(all, [&](const Apart& one) { return one.errors >= least; });
  LeftStep step;
  step.row.restart = first->first.restart;
  step.row.rank = first->rank;
  step.row.step = first->first.step;
  step.row.seq = first->first.seq;
  step.series = facts.series[first->series];
  step.is_difference = first->measure != Measure::norm;
  const auto number = [&](double difference) {
    return step.is_difference ? difference : std::exp(difference);
  };
  step.norm = number(first->after);
  step.usual = number(first->before);
  step.score = first->errors;
  step.apart = number(std::abs(first->after - first->before));
  step.measure = first->measure;
  step.means = static_cast<int>(first->rows);
  step.beside = first->beside;
  step.lines = all.size();
  step.ranks = {first->rank};
  for (auto next = first + 1; next != all.end() && step.next.size() + 1 < kNamedLines; ++next) {
    if (next->series != first->series) step.next.push_back(facts.series[next->series]);
  }
  return step;
}

}  // namespace

std::optional<LeftStep> apart_ranks(const OpenedRun& run, ReadOptions options,
                                    const Diagnosis& diagnosis) {
  if (diagnosis.verdict) return std::nullopt;
  options.all_restarts = options.merged = false;
  if (options.kinds.empty())
    options.kinds = {std::string(kind::kActv), std::string(kind::kActvGrad)};
  const RunStream stream(run, options);
  const RunRows& facts = stream.facts();
  const auto is_shared = [](const Series& one) {
    const bool is_activation = one.kind == kind::kActv || one.kind == kind::kActvGrad;
    return is_activation && one.replication == Replication::disjoint;
  };
  if (facts.ranks.size() < 2 || std::ranges::none_of(facts.series, is_shared)) return std::nullopt;
  const TensorNumbers tensors(facts.series);
  using Ahead = std::vector<LineValue>;  // of the rows of a piece
  const std::vector<RunStream::Piece>& pieces = stream.pieces();
  const auto read = [&](std::size_t i) { return line_values(stream, pieces[i]); };
  std::vector<Apart> all;
  RankLines first(-1, 0), before(-1, 0), now(-1, 0);
  const auto begin_rank = [&](int rank) {
    if (before.rank >= 0) add_apart(now, before, all);
    if (before.rank >= 0 && first.rank < 0) first = std::move(before);
    before = std::exchange(now, RankLines(rank, tensors.count));
  };
  MadeAhead<Ahead> ahead(pieces.size(), threads_with_pieces(options.threads), read);
  for (std::size_t i = 0; const std::optional<Ahead> piece = ahead.next(); ++i) {
    if (pieces[i].rank != now.rank) begin_rank(pieces[i].rank);
    for (const LineValue& value : *piece) {
      if (is_shared(facts.series[value.series])) now.add(tensors.of[value.series], value);
    }
  }
  begin_rank(-1);
  if (first.rank >= 0 && facts.ranks.size() > 2) {
    add_apart(first, before, all);  // so that each rank has two neighbours
  }
  return named_step(facts, diagnosis, std::move(all));
}

void add_apart_ranks(std::optional<LeftHistory>& found, const OpenedRun& run,
                     const ReadOptions& options, const Diagnosis& diagnosis) {
  std::optional<LeftStep> apart = apart_ranks(run, options, diagnosis);
  if (!apart) return;
  const auto is_same = [&](const LeftStep& one) {
    return std::abs(one.row.step - apart->row.step) <= kNear &&
           std::ranges::find(one.ranks, apart->row.rank) != one.ranks.end();
  };
  add_unless(is_same, std::move(*apart), found);
}

}  // namespace trainmon
