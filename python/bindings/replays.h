// Pairs recomputed calls of a module with the calls of the first pass, whose gradients they see.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

namespace trainmon {

// Reentrant checkpointing recomputes its segments in reverse, but calls within a segment in
// order. How many there were is known only when gradients arrive. So a recomputed call is
// resolved then, counting from the end.
using Calls = std::vector<std::int32_t>;

// The calls of one segment.
class Burst {
 public:
  explicit Burst(std::shared_ptr<Calls> waiting) : waiting_(std::move(waiting)) {}

  bool is_resolved() const { return is_resolved_; }
  std::int32_t add() { return size_++; }
  // The call of the first pass that the index-th recomputed one stands for.
  std::int32_t call(std::int32_t index) {
    if (!is_resolved_) {
      is_resolved_ = true;
      const auto known = static_cast<std::int32_t>(waiting_->size());
      const auto first = waiting_->begin() + std::max(known - size_, 0);
      mine_.assign(first, waiting_->end());
      waiting_->erase(first, waiting_->end());
    }
    const auto place = static_cast<std::size_t>(index);
    return place < mine_.size() ? mine_[place] : index;
  }

 private:
  std::shared_ptr<Calls> waiting_;
  std::int32_t size_ = 0;
  bool is_resolved_ = false;
  Calls mine_;
};

struct Replay {
  std::shared_ptr<Burst> burst;
  std::int32_t index;  // in it
};

class Replays {
 public:
  // A call without a graph: if there is one later, its gradients belong to this call.
  void await(std::int32_t call) {
    if (waiting_ == nullptr) waiting_ = std::make_shared<Calls>();
    waiting_->push_back(call);
  }
  // A call is recomputed; nothing where none awaits it.
  std::optional<Replay> next() {
    if (waiting_ == nullptr || (waiting_->empty() && burst_ == nullptr)) return std::nullopt;
    if (burst_ == nullptr || burst_->is_resolved()) burst_ = std::make_shared<Burst>(waiting_);
    return Replay{burst_, burst_->add()};
  }
  // The call that the index-th recomputed one of the burst under way stands for.
  std::int32_t call(std::int32_t index) { return burst_ == nullptr ? 0 : burst_->call(index); }
  // Bursts that gradients still come from keep what they know.
  void forget() {
    waiting_.reset();
    burst_.reset();
  }

 private:
  std::shared_ptr<Calls> waiting_;  // null: no call was awaited
  std::shared_ptr<Burst> burst_;
};

}  // namespace trainmon
