// Offline: how far the gradient directions of two dumps agree, step by step and parameter by
// parameter, and what the manual's rule says of it.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <vector>

namespace trainmon {

struct DirectionsOptions {
  // Dumps: directories with rank{r}/step{n}/{parameter}.npy or .sign (docs/formats.md), or one
  // rank's directory, whose steps lie directly in it.
  std::filesystem::path first;
  std::filesystem::path second;
  // Made where it is missing. Dumps with ranks get a directory rank{r} each, others none.
  std::filesystem::path out;
  int threads = 1;
  // Pairs of files done and in all; now and then, from any thread.
  std::function<void(std::int64_t, std::int64_t)> progress;
  // Asked now and then; true ends the comparison with Cancelled and without any output.
  std::function<bool()> cancelled;
};

// How many elements of two tensors have the same sign.
struct Agreement {
  std::int64_t equal = 0;
  std::int64_t elements = -1;  // -1: not compared

  bool is_compared() const { return elements >= 0; }
  double similarity() const;  // 0 of no elements, as the peer has it; NaN where not compared
};

// What could not be compared, or was and is in doubt, and why. Without steps and without parameter:
// a rank.
struct Remark {
  std::optional<std::int64_t> rank;
  std::string parameter;            // "": whole steps
  std::vector<std::int64_t> steps;  // ascending; empty: a whole rank
  std::string what;                 // "only in the first", "sizes [2, 3] against [3, 2]", ...
};

// The manual's rule. first_step: an agreement of less than 97 of 100 at the first step of a
// parameter that was compared. drop: more than 3 of 100 less than at its step before. Exact:
// whole numbers are compared, not rounded quotients. A tensor without elements is never
// suspicious.
enum class DirectionRule : std::uint8_t { first_step, drop };
struct Suspicion {
  std::size_t parameter = 0;  // in RankDirections::parameters
  std::int64_t step = 0;
  DirectionRule rule = DirectionRule::first_step;
  Agreement here;
  Agreement before;  // of a drop
};

struct RankDirections {
  std::optional<std::int64_t> rank;  // nullopt: a dump without ranks
  std::filesystem::path out;         // its directory of the output; "": nothing could be compared
  std::vector<std::int64_t> steps;   // that both have, ascending
  // Those compared at one step at least, in the order of the summaries (which is the forward one),
  // then by name.
  std::vector<std::string> parameters;
  std::vector<std::vector<Agreement>> agreements;  // [parameter][step]
  std::vector<Agreement> summary;                  // [step]: all parameters' elements together
  // Each parameter's first bad step: by step, then in backward order.
  std::vector<Suspicion> suspicions;
  std::vector<Remark> not_compared;
  // They were compared, but with a doubt. A NaN (as the summaries' norms tell) counts as not
  // positive. Of two files of one parameter, .sign and .npy, the newer was taken.
  std::vector<Remark> doubts;
};

struct DirectionsReport {
  std::vector<RankDirections> ranks;  // that both dumps have, ascending
  std::vector<Remark> not_compared;   // ranks that one has
};

// Compares what can be compared and writes similarities.csv and verdict.json per rank, in place
// of older ones. Arrays of one byte per element (bool, not zero: true; or int8: its sign) and
// packed signs compare with each other. Three-valued signs compare as such where both are, else
// what is positive. Of a large file only a part is in memory, of a packed one all of it. Throws
// std::runtime_error where nothing at all can be compared, saying what each dump has. Throws
// Cancelled (base/cancelled.h), SinkError when the output cannot be written, and
// std::invalid_argument for threads outside 1 to 256.
DirectionsReport compare_directions(const DirectionsOptions& options);

}  // namespace trainmon
