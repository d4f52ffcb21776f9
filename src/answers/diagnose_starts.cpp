// What one start found says nothing of another: somebody may have started again with another loop.
#include "answers/diagnose_starts.h"

#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <tuple>
#include <utility>

#include "read/run_stream.h"

namespace trainmon {
namespace {

// The diagnoses of starts, joined. One thread.
class JoinedStarts {
 public:
  // In ascending order of restarts.
  void add(int restart, Diagnosis&& start) {
    joined_.rows += start.rows;
    joined_.left_out += start.left_out;
    Diagnosis::Start& one = joined_.starts.emplace_back(restart);
    if (start.verdict) one.verdict = joined_.findings.size() + *start.verdict;
    add_findings(std::move(start));
    for (const Diagnosis::Checked& of_start : start.checked) {
      Diagnosis::Checked& sum = checked_.try_emplace(of_start.check, of_start.check).first->second;
      sum.times += of_start.times;
      for (std::size_t e = 0; e < sum.by.size(); ++e) sum.by[e] += of_start.by[e];
    }
    // Of a start that recorded nothing, no check has a reason of its own.
    if (start.rows == 0) start.not_checked = {{"all", "no rows"}};
    for (Diagnosis::NotChecked& of_start : start.not_checked) {
      const auto known = std::ranges::find_if(not_checked_, [&](const auto& before) {
        return before.what.check == of_start.check && before.what.why == of_start.why;
      });
      if (known != not_checked_.end()) {
        known->restarts.push_back(restart);
      } else {
        not_checked_.push_back({std::move(of_start), {restart}});
      }
    }
  }

  Diagnosis take(RunRows&& facts) {
    joined_.run = std::move(facts);
    for (const auto& [check, sum] : checked_) joined_.checked.push_back(sum);
    for (auto& [what, restarts] : not_checked_) {
      joined_.not_checked.push_back({std::move(what.check), what.why + in_restarts(restarts)});
    }
    for (const Diagnosis::Start& one : joined_.starts) {
      if (!one.verdict) continue;
      const bool is_first = !joined_.verdict || joined_.findings[*one.verdict].step <
                                                    joined_.findings[*joined_.verdict].step;
      if (is_first) joined_.verdict = one.verdict;
    }
    return std::move(joined_);
  }

 private:
  void add_findings(Diagnosis&& start) {
    std::vector<std::uint32_t> numbers;
    for (const detect::Tensor& one : start.tensors) {
      const auto [known, is_new] =
          tensors_.try_emplace({one.name, one.chunk, one.optimizer, one.element},
                               static_cast<std::uint32_t>(joined_.tensors.size()));
      if (is_new) joined_.tensors.push_back(one);
      numbers.push_back(known->second);
    }
    for (detect::Finding& one : start.findings) {
      for (std::uint32_t& tensor : one.tensors) tensor = numbers[tensor];
      std::ranges::sort(one.tensors);
      joined_.findings.push_back(std::move(one));
    }
  }

  // Nothing where it is so of all.
  std::string in_restarts(const std::vector<int>& restarts) const {
    if (restarts.size() == joined_.starts.size()) return "";
    return (restarts.size() == 1 ? ", in restart " : ", in restarts ") + ranks_text(restarts);
  }

  Diagnosis joined_;
  std::map<std::tuple<std::string, std::int32_t, std::int32_t, std::string>, std::uint32_t>
      tensors_;  // name, chunk, optimizer, element -> place in joined_.tensors
  std::map<detect::Check, Diagnosis::Checked> checked_;
  struct NotChecked {
    Diagnosis::NotChecked what;
    std::vector<int> restarts;
  };
  std::vector<NotChecked> not_checked_;
};

}  // namespace

Diagnosis diagnose_starts(const OpenedRun& run, const ReadOptions& options,
                          std::vector<Damage>& damage) {
  RunStream whole(run, options);
  std::set<int> restarts;
  for (const OpenedLog& one : run.logs) {
    if (!one.place.error) restarts.insert(one.place.restart);
  }
  JoinedStarts joined;
  for (const int restart : restarts) {
    joined.add(restart, diagnose_record(run.of_restart(restart), options, damage));
  }
  return joined.take(whole.take_facts());
}

}  // namespace trainmon
