#include "answers/small_steps.h"

#include <algorithm>
#include <cstdint>
#include <string>
#include <utility>

#include "answers/rank_lines.h"
#include "model/kinds.h"
#include "read/run_stream.h"

namespace trainmon {
namespace {

constexpr std::int64_t kAround = 32;                   // steps that are read on either side
constexpr std::size_t kFewestRows = 16, kWindow = 24;  // rows on either side
constexpr double kClear = 8.0;                         // standard errors
constexpr std::size_t kOtherSteps = 8;                 // on either side, that are no clearer
constexpr double kAsClear = 0.8;                       // of the clearest of them

bool may_tell(const Series& series) {
  return series.kind == kind::kInput || series.kind == kind::kInputEntropy ||
         series.kind == kind::kActv;
}

// The numbers of a line on either side of a place, as far as they are looked at.
struct Sides {
  std::size_t begin, at, end;

  bool has_enough() const { return at >= begin + kFewestRows && at + kFewestRows <= end; }
};

Sides sides_of(std::size_t at, std::size_t rows) {
  return {at - std::min(at, kWindow), at, std::min(rows, at + kWindow)};
}

double errors_at(const Sums& sums, const Sides& sides) {
  return sides.has_enough() ? sums.errors_between(sides.begin, sides.at, sides.end) : 0.0;
}

// A training that goes elsewhere from the step on changes its activations, too, and bit by bit: not
// those of the step itself. How likely its row is one of those behind it and none of those before,
// in logarithms; nullopt where means are not apart.
std::optional<double> step_at(const std::vector<Sample>& line, std::size_t measure,
                              std::int64_t step) {
  Sums sums;
  for (const Sample& one : line) sums.add(one.numbers[measure]);
  const auto first = std::ranges::lower_bound(line, step, {}, &Sample::step);
  const Sides sides = sides_of(static_cast<std::size_t>(first - line.begin()), line.size());
  const double errors = errors_at(sums, sides);
  if (errors < kClear) return std::nullopt;
  const auto& [begin, at, end] = sides;
  const double before = sums.mean(begin, at), apart = sums.mean(at, end) - before;
  if (!sums.is_level(begin, at, apart) || !sums.is_level(at, end, apart)) return std::nullopt;
  // There are more rows on either side than the others are away.
  for (std::size_t other = at - kOtherSteps; other <= at + kOtherSteps; ++other) {
    if (errors < kAsClear * errors_at(sums, sides_of(other, line.size()))) return std::nullopt;
  }
  // Of rows with one variance, of which the means have these errors.
  const double far = (line[at].numbers[measure] - before) / apart;
  return (far - 0.5) * errors * errors / (0.5 * static_cast<double>(end - at));
}

}  // namespace

std::vector<Series> small_steps(const OpenedRun& run, ReadOptions options, const LeftStep& left) {
  options.all_restarts = options.merged = false;
  options.first_step = std::max(options.first_step.value_or(0), left.row.step - kAround);
  options.last_step =
      std::min(options.last_step.value_or(left.row.step + kAround), left.row.step + kAround);
  options.ranks = {left.row.rank};
  const RunStream stream(run, options);
  const std::vector<Series>& series = stream.facts().series;
  const TensorNumbers tensors(series);
  RankLines rank(left.row.rank, tensors.count);
  for (const RunStream::Piece& piece : stream.pieces()) {
    for (const LineValue& value : line_values(stream, piece)) {
      if (may_tell(series[value.series])) rank.add(tensors.of[value.series], value);
    }
  }
  std::vector<std::pair<std::uint64_t, std::uint32_t>> found;  // by the order of a step
  double likely = 0.0;
  for (std::size_t tensor = 0; tensor < rank.lines.size(); ++tensor) {
    const std::vector<Sample>& line = rank.lines[tensor];
    bool is_apart = false;
    for (std::size_t i = 0; i < kMeasures.size(); ++i) {
      const std::optional<double> one = step_at(line, i, left.row.step);
      is_apart = is_apart || one;
      likely += one.value_or(0.0);
    }
    if (is_apart) found.emplace_back(line.front().seq, rank.series[tensor]);
  }
  if (likely <= 0.0) return {};
  std::ranges::sort(found);
  found.resize(std::min(found.size(), kNamedLines - 1));
  std::vector<Series> named;
  for (const auto& [seq, number] : found) named.push_back(series[number]);
  return named;
}

void add_small_steps(std::optional<LeftHistory>& found, const OpenedRun& run,
                     const ReadOptions& options) {
  if (found && found->before == Unmoved::forward) {
    found->less_clear = small_steps(run, options, *found);
  }
}

}  // namespace trainmon
