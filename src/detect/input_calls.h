// What the whole model was given: one entry per tensor of a call, of which calls are made.
#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

namespace trainmon::detect {

// Of a tensor of numbers that are no ids.
struct Sizes {
  double count = 0.0;
  double norm = 0.0;
  double mean = 0.0;
  double absmax = 0.0;
};

// A row of kind `input`, or of `input_entropy`.
struct Input {
  std::int32_t rank = 0;
  std::int32_t chunk = 0;
  std::int32_t accum = 0;
  std::int32_t call = 0;
  std::uint64_t seq = 0;
  std::string element;                            // of the arguments: "input.0"
  bool is_of_whole_batch = false;                 // ranks are given parts of one batch
  bool is_unrelated = false;                      // nothing says how those of ranks relate
  bool is_part_of_call = false;                   // the call is given more than has rows
  bool is_finite = true;                          // but for -Inf, which masks are made of
  std::optional<std::uint64_t> fingerprint = {};  // of its bits
  std::optional<double> entropy = {};             // in bits
  std::optional<Sizes> sizes = {};
  bool is_constant = false;                              // all elements are alike
  double count = 0.0;                                    // elements
  std::optional<std::pair<double, double>> limits = {};  // of ids: the smallest, the largest
};

// One forward of the whole model.
struct InputCall {
  std::int32_t rank = 0;
  std::int32_t chunk = 0;
  std::int32_t accum = 0;
  std::int32_t call = 0;
  std::int32_t forwards = 0;  // the most that a micro step of its step, rank and chunk has
  std::uint64_t seq = 0;      // of its first row
  bool is_of_whole_batch = false;
  bool is_unrelated = false;
  // Of all its tensors and the names of their arguments. nullopt where one has no fingerprint, it
  // is given more, or all are constant: silence and padding come again by themselves.
  std::optional<std::uint64_t> bits = {};
  std::vector<std::pair<std::string, double>> entropies = {};  // by argument
};

// What the last calls of one kind were given, by bits. One thread.
class LastGiven {
 public:
  struct Given {
    std::int64_t number = 0;  // of the call
    std::int64_t step = 0;
  };
  // So many calls are remembered.
  explicit LastGiven(std::size_t most) : most_(most) {}
  // Of the next call. When the same was given last; nullopt where it is new.
  std::optional<Given> note(std::uint64_t bits, std::int64_t step);
  std::optional<Given> find(std::uint64_t bits) const;
  std::int64_t calls() const { return calls_; }

 private:
  std::size_t most_;
  std::int64_t calls_ = 0;
  std::unordered_map<std::uint64_t, Given> given_;
  std::deque<std::uint64_t> order_;
};

// The calls of one step, ordered by rank, chunk, call, accum. The order of `rows` does not matter.
std::vector<InputCall> calls_of(const std::vector<Input>& rows);

}  // namespace trainmon::detect
