// Steps of both runs are compared side by side. What whole runs tell is taken from their first
// steps and held against the whole at the end. Where the whole tells something else, all steps
// are compared again.
#include "compare/compare.h"

#include <cmath>
#include <limits>
#include <map>
#include <set>
#include <stdexcept>
#include <string_view>
#include <utility>

#include "base/text.h"
#include "compare/compared_declared.h"
#include "compare/compared_run.h"
#include "compare/comparison.h"

namespace trainmon {
namespace {

constexpr std::int64_t kFirstSteps = 3;  // so many tell how far a first step moved a weight
constexpr std::int64_t kAllSteps = std::numeric_limits<std::int64_t>::max();

// msprobe's monitor leaves out the beginning of some names: encoder.layers.0 is its layers.0. A
// tensor that only one run has goes with the only one of the other whose name ends with its own.
void match_endings(const ComparedRun& a, ComparedRun& b) {
  if ((a.side.format == "msprobe_csv") == (b.side.format == "msprobe_csv")) return;
  std::set<std::string_view> of_a, of_b;
  const std::vector<std::uint32_t> tensors_a = a.tensors.in_order();
  for (const std::uint32_t i : tensors_a) of_a.insert(a.tensors[i].match);
  for (const std::uint32_t i : b.tensors.in_order()) of_b.insert(b.tensors[i].match);
  const auto ends_with = [](const std::string& x, const std::string& y) {
    const std::size_t name_x = x.rfind(kMatchSeparator) + 1, name_y = y.rfind(kMatchSeparator) + 1;
    const std::string_view longer = std::string_view(x).substr(name_x);
    const std::string_view shorter = std::string_view(y).substr(name_y);
    return x.substr(0, name_x) == y.substr(0, name_y) && longer.size() > shorter.size() + 1 &&
           longer.ends_with(shorter) && longer[longer.size() - shorter.size() - 1] == '.';
  };
  std::map<std::string, std::vector<ComparedTensor*>> candidates;  // by the name in A
  for (const std::uint32_t i : b.tensors.in_order()) {
    ComparedTensor& tensor = b.tensors[i];
    if (of_a.contains(tensor.match)) continue;
    std::vector<const std::string*> found;
    for (const std::uint32_t k : tensors_a) {
      const ComparedTensor& other = a.tensors[k];
      if (of_b.contains(other.match)) continue;
      if (ends_with(other.match, tensor.match) || ends_with(tensor.match, other.match)) {
        found.push_back(&other.match);
      }
    }
    if (found.size() == 1) candidates[*found[0]].push_back(&tensor);
  }
  for (auto& [match, tensors] : candidates) {
    if (tensors.size() == 1) tensors[0]->match = match;
  }
}

// Of tensors, those without rows as well.
std::vector<std::string> matches_of(const ComparedRun& run) {
  std::vector<std::string> matches;
  for (std::uint32_t i = 0; i < run.tensors.size(); ++i) matches.push_back(run.tensors[i].match);
  return matches;
}

// What tensors of the runs are matched by, as far as they were met; whether it is as before.
bool set_matches(ComparedRun& a, ComparedRun& b, ComparedRun* null) {
  bool are_as_before = true;
  for (ComparedRun* const run : {&a, &b, null}) {
    if (run == nullptr) continue;
    const std::vector<std::string> before = matches_of(*run);
    run->tensors.set_matches();
    if (run != &a) match_endings(a, *run);
    are_as_before = are_as_before && matches_of(*run) == before;
  }
  return are_as_before;
}

Comparison compared(const CompareOptions& options, ComparedRun& a, ComparedRun& b,
                    ComparedRun* null) {
  WholeRuns known;
  std::int64_t steps = kFirstSteps;
  while (true) {
    Comparison comparison(options, a, b, null, known);
    comparison.run(steps);
    WholeRuns found = comparison.whole_runs();
    const bool is_known = set_matches(a, b, null) && found == known;
    if (is_known && steps == kAllSteps) return comparison;
    known = std::move(found);
    steps = kAllSteps;
  }
}

std::string contents(const char* which, const ComparedRun& run) {
  std::string text = std::string(which) + ", " + printable(run.side.path.native()) + " (" +
                     run.side.format + "), has ";
  if (run.side.rows == 0) {
    return text + "no row that was selected" +
           (run.side.not_used.empty() ? "" : " (" + printable(run.side.not_used[0]) + ")") +
           (run.holds.empty() ? "" : "; it has " + run.holds);
  }
  text += "steps " + std::to_string(run.side.first_step) + " to " +
          std::to_string(run.side.last_step) + ", kinds";
  for (const std::string& kind : run.side.kinds) text += " " + printable(kind);
  const std::vector<std::uint32_t> tensors = run.tensors.in_order();
  const std::string& name = run.tensors[tensors.front()].name;
  return text + ", " + std::to_string(tensors.size()) + " tensors such as " +
         printable(name.empty() ? "(root)" : name);
}

}  // namespace

CompareReport compare(const CompareOptions& options) {
  if (!(options.factor > 0.0) || !std::isfinite(options.factor)) {
    throw std::invalid_argument("the factor on tolerances must be a positive number, not " +
                                number_text(options.factor));
  }
  const auto a = open_compared(options.a, options.select);
  const auto b = open_compared(options.b, options.select);
  const auto null = options.null ? open_compared(*options.null, options.select) : nullptr;
  // Tables know their tensors before a row is compared.
  set_matches(*a, *b, null.get());
  Comparison comparison = compared(options, *a, *b, null.get());
  for (ComparedRun* const run : {a.get(), b.get(), null.get()}) {
    if (run != nullptr) run->side.not_used = not_used(*run);
  }
  CompareReport report = comparison.report();
  if (null && comparison.null_pairs() == 0) {
    throw std::runtime_error("--null has no row in common with A");
  }
  a->side = report.a;
  b->side = report.b;
  report.declared = declared_differences(*a, *b);
  if (report.rows > 0) return report;
  if (comparison.pairs() == 0) {
    throw std::runtime_error("the runs have no row in common: " + contents("A", *a) + "; " +
                             contents("B", *b));
  }
  throw std::runtime_error("no row of the runs can be compared: " +
                           (report.different_size.empty()
                                ? "none has a value"
                                : "sizes differ, as of " + printable(report.different_size[0])));
}

}  // namespace trainmon
