// Which row of a step of one run belongs to which of the other.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "compare/compared_tensor.h"

namespace trainmon {

inline constexpr int kReducedMoment = 4;  // moment_of(): from here on there is one row a step

struct RowPair {
  std::uint32_t a = 0;  // places among the rows of the step
  std::uint32_t b = 0;
  std::uint32_t tensor = 0;  // of A
  std::int32_t rank = 0;     // -1 where both are merged
  // Gradients that add up count back from the last one (0, -1, ...), what there is once a step has
  // 0, all else counts its backwards.
  std::int32_t place = 0;
};

// What to sort the reduced gradients of A by, which are read in the order of the model: the order
// of the backward. A tensor that is not there comes last.
using BackwardOrder = std::map<std::uint32_t, std::uint64_t>;

// Of rows that the other run lacks among the steps it has.
struct Lack {
  std::int64_t first_step = 0;
  std::int64_t rows = 0;
};

// One of both runs.
struct PairedSide {
  const TensorTable* tensors = nullptr;
  std::int64_t unmatched = 0;
  std::map<std::uint32_t, Lack> lacks;  // by tensor
  std::int32_t backwards = 0;           // of the step, as far as rows tell
};

class StepPairs {
 public:
  // Matches of the tensors must not change, but tensors may be added.
  StepPairs(const TensorTable& a, const TensorTable& b, BackwardOrder backward);

  // Pairs of a step in A's order of execution. The order is by attempt, then as a fault passes
  // through a step (model/first_bad.h), then by the order on the rank. Rows of one place are
  // matched rank by rank, the k-th of one rank with the k-th of the other. A row merged over
  // ranks matches every rank the other run has there. `a_is_within`: B has earlier or equal and
  // later or equal steps.
  void match(std::int64_t step, const std::vector<ComparedRow>& a, bool a_is_within,
             const std::vector<ComparedRow>& b, bool b_is_within);
  const std::vector<RowPair>& pairs() const { return pairs_; }
  // Goes up whenever pairs() are others than those of the step before.
  std::int64_t version() const { return version_; }
  const PairedSide& a() const { return a_.side; }
  const PairedSide& b() const { return b_.side; }

 private:
  // Rows without what changes from step to step.
  struct Identities {
    std::vector<ComparedRow> rows;
    bool takes(const std::vector<ComparedRow>& others) const;
  };
  struct Side {
    PairedSide side;
    Identities known;
    std::vector<std::uint32_t> numbers;  // of tensors: equal for equal matches
    std::vector<std::int32_t> places;    // of rows
    std::vector<std::pair<std::uint32_t, std::int64_t>> lacking;  // tensor, rows of each step
  };
  struct Entry {
    std::uint32_t order = 0;  // of the tensor
    std::uint32_t row = 0;
    std::int32_t attempt = 0, place = 0, call = 0, rank = 0;
    bool is_b = false;
    std::uint64_t seq = 0;
    auto where() const { return std::tie(order, attempt, place, call); }
  };
  using Group = std::span<const Entry>;
  using RankRows = std::map<std::int32_t, std::vector<std::uint32_t>>;

  void number_tensors(Side& side);
  void place_rows(Side& side, const std::vector<ComparedRow>& rows);
  void pair_anew(const std::vector<ComparedRow>& a, const std::vector<ComparedRow>& b);
  void add_pair(std::uint32_t a, std::uint32_t b);
  bool match_two(Group group);
  void match(Group group);
  void sort_as_executed();
  static void count(Side& side, std::int64_t step, bool is_within);

  Side a_, b_;
  const BackwardOrder backward_;
  std::map<std::string, std::uint32_t> by_match_;
  std::vector<RowPair> pairs_;
  std::int64_t version_ = 0;
};

}  // namespace trainmon
