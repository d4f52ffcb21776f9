// The check of what the whole model is given.
#pragma once

#include <compare>
#include <cstdint>
#include <deque>
#include <limits>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "detect/input_calls.h"
#include "detect/window.h"

namespace trainmon::detect {

// Batches that are given again, to the same rank or to another one, and ids whose entropy jumps.
// Inputs that are not finite, once of each argument. Data that begin anew where a start goes on
// from another one. Keeps fingerprints of the last batches of each rank.
class Inputs {
 public:
  void check(const Window& window, Findings& found);

 private:
  class Report;
  // Forwards of one chunk of the model: the first of each micro step, the second, ... With one more
  // or less in a step each may be another one: an auxiliary loss, or an evaluation in between. So
  // steps of each number of forwards have a history of their own.
  struct Place {
    std::int32_t rank, chunk, forwards, call;
    auto operator<=>(const Place&) const = default;
  };
  static Place place_of(const InputCall& call) {
    return {call.rank, call.chunk, call.forwards, call.call};
  }
  // Calls in a row that were given what should be new.
  struct Run {
    std::int64_t length = 0, step = 0;  // the step of the first
    bool follows_new = false;
    bool is_beside_new = false;  // another forward of its steps was given a new batch
    bool is_over_steps = false;  // a batch of an earlier step is among them
    bool is_said = false;
  };
  // Runs that ended, the first of which was certain.
  struct Regular {
    std::int64_t length = 0;  // of the first
    bool is_even = true;      // all are as long
    std::int64_t times = 0;
    std::int64_t step = 0;    // of the first run
    std::int64_t beyond = 0;  // the step in which a later one became longer
    std::int64_t said = 0;    // that of which it was said
    int longer = 0;           // such runs that ended
    bool is_said = false;
  };
  using Given = LastGiven::Given;
  static constexpr std::size_t kBatches = 4096;  // that are remembered of each rank
  struct Stream {
    LastGiven given{kBatches};
    std::int64_t closest = std::numeric_limits<std::int64_t>::max();  // calls between equal batches
    Run run = {};
    Regular regular = {};
    std::int64_t repeated = 0;  // calls that were given a batch again
    Given first = {};           // of them
    std::string first_text = {};
    bool is_noticed = false;
  };
  struct Shared {
    std::int64_t alone = 0;  // calls without a rank that is given the same; -1: there was one
    Run run = {};
    bool is_noticed = false;
  };
  // What the start before was given, where it was given nothing twice.
  struct Earlier {
    LastGiven given{kBatches};
    std::int64_t again = 0;  // the first calls of this start that were given one of them
    std::int64_t from = 0;   // the step in which the first of those was given
    std::int64_t since = 0;  // the step of the first such call
  };
  struct Entropies {
    std::deque<double> last;
    bool is_noticed = false;
  };

  // Of a rank, or of all.
  void forget(std::optional<std::int32_t> rank = {});
  void forget_edited(const Window& window, const std::vector<InputCall>& calls);
  void begin_start();
  void check_begins_anew(std::int64_t step, const InputCall& call, Report& report);
  // Whether another forward of the rank has a batch that this forward had not before.
  bool has_new_beside(const InputCall& call, const std::vector<InputCall>& calls) const;
  void check_again(std::int64_t step, const InputCall& call, bool is_beside_new, Report& report);
  static void end_run(Stream& stream, std::int32_t rank, Report& report);
  void check_ranks(std::int64_t step, const std::vector<InputCall>& calls, Report& report);
  void check_entropy(const Window& window, const InputCall& call, Report& report);

  std::int32_t restart_ = 0;
  std::int64_t step_ = 0, apart_ = 0;  // the last step, and how far it was from the one before
  std::map<Place, Stream> streams_;
  std::map<Place, Earlier> earlier_;
  std::map<Place, Shared> shared_;
  std::map<std::pair<Place, std::string>, Entropies> entropies_;
  std::map<std::int32_t, std::uint64_t> last_seq_;  // by rank
  std::set<std::string> not_finite_;                // arguments: said
};

}  // namespace trainmon::detect
