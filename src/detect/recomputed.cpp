#include "detect/recomputed.h"

#include <tuple>
#include <utility>

namespace trainmon::detect {

void Recomputed::check(const Window& window, Findings& found) {
  // A module that was called several times: which call is recomputed is not known.
  std::map<std::tuple<std::int32_t, std::uint32_t, std::int32_t>, const ModuleOutput*> first;
  for (const ModuleOutput& one : window.now.outputs()) {
    if (one.of != ModuleOutput::Of::forward) continue;
    const auto [known, is_new] = first.try_emplace({one.rank, one.tensor, one.accum}, &one);
    if (!is_new) known->second = nullptr;
  }
  std::map<std::int32_t, std::int64_t> alike;
  for (const ModuleOutput& one : window.now.outputs()) {
    if (one.of != ModuleOutput::Of::recomputed) continue;
    const auto known = first.find({one.rank, one.tensor, one.accum});
    if (known == first.end() || known->second == nullptr) continue;
    found.checked(Check::recompute);
    OfRank& rank = ranks_[one.rank];
    if (known->second->digest == one.digest) {
      ++alike[one.rank];
      continue;
    }
    if (rank.alike < kAlike) {
      rank.alike = 0;
      continue;
    }
    if (rank.others++ == 0) rank.since = window.now.step;
    rank.tensors.insert(one.tensor);
  }
  for (auto& [number, rank] : ranks_) {
    if (const auto known = alike.find(number); known != alike.end()) rank.alike += known->second;
    if (rank.others >= kOthers && !std::exchange(rank.is_said, true)) {
      Finding one = window.notice(Check::recompute, Stage::grad_unreduced, number, rank.since,
                                  {rank.tensors.begin(), rank.tensors.end()});
      one.text =
          "the backward recomputes other values than the forward gave, as with other random "
          "numbers; they were the same before";
      found.add(std::move(one));
    }
    const bool is_over = window.now.step - rank.since >= kWithin;
    if (is_over && !rank.is_said) {
      rank.others = 0;
      rank.tensors.clear();
    }
  }
}

}  // namespace trainmon::detect
