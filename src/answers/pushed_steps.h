// The steps of a run as a tracker is given them: each once, over all ranks, in order. They have
// the values of the chosen series and begin where an earlier push stopped.
#pragma once

#include <chrono>
#include <cstdint>
#include <deque>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "answers/push_position.h"
#include "answers/rank_tail.h"
#include "answers/series_choice.h"
#include "read/expired_steps.h"

namespace trainmon {

struct PushOptions {
  std::size_t series = 100;  // at most
  std::vector<int> ranks;    // empty: all
  bool newest_only = false;  // the newest step, with the newest of each value
  std::optional<std::filesystem::path>
      state;  // folder of the position; nullopt: from the beginning
};

struct PushedStep {
  std::string start;  // 16 hex digits: this start of this run, wherever its folder is
  std::int32_t restart = 0;
  std::int64_t step = 0;     // of the clock
  std::int64_t time_ns = 0;  // when its last rank ended it; a ms after the one before, at least
  std::vector<std::pair<std::uint32_t, double>> values;  // numbers of series(), ascending
  std::size_t chosen = 0;                                // series up to this step
};

// One thread. Never waits for the run, and takes no lock that it takes.
class PushedSteps {
 public:
  // Throws as rank_directories() and PositionFile, std::invalid_argument for ranks that are not
  // there, or not those of the position.
  PushedSteps(std::filesystem::path run, PushOptions options);

  // At most `most` further steps. A step comes when all ranks have ended it, or one that has not
  // said anything for a minute is all that it waits for. The starts come one after the other, what
  // an ended one left unfinished at its end.
  std::vector<PushedStep> look(std::size_t most);
  // The target has whatever look() has given, and has said `verdict`. On the disk when it returns.
  void done(const std::string& verdict);

  const std::vector<PushedSeries>& series() const { return choice_.chosen(); }
  const SeriesChoice& choice() const { return choice_; }
  const std::string& verdict() const { return position_.verdict; }  // the last that was said
  // The run has ended, and look() has given all of it.
  bool is_over() const;
  // What could not be used since the last call.
  std::vector<Damage> damage() { return std::exchange(damage_, {}); }
  // Why the record is not complete, a sentence each.
  std::vector<std::string> incomplete() const;
  // As RunRows has it, of the ranks asked for.
  std::vector<std::string> expired() const {
    return expired_sentences(rank_directories(run_),
                             [this](int rank) { return filter_.takes_rank(rank); });
  }
  // Values that came after their step was given.
  std::int64_t late() const { return late_; }

 private:
  using Clock = std::chrono::steady_clock;
  struct Rank {
    std::unique_ptr<RankTail> tail;
    Clock::time_point heard;  // when it last said something
    std::int64_t told = -1;   // its newest step
    bool is_taken = false;    // which is not tried again
    bool is_at_end = false;   // of what there was at this look
  };
  struct Layer {
    int rank = 0;  // the lowest that has it
    std::optional<std::uint32_t> series;
  };
  struct Tensor {
    std::size_t layer = 0;
    std::optional<std::uint32_t> series;
  };
  // One start of the run.
  struct Start {
    std::string id;
    bool has_many_ranks = false;
    std::map<int, Rank> ranks;
    std::map<std::int64_t, std::map<int, TailStep>> waiting;
    std::int64_t newest = -1;  // step that was emitted
    std::int64_t time_ns = 0;  // and its time
    bool is_flushed = false;
    std::vector<Layer> layers;
    std::map<std::pair<std::string, std::string>, std::size_t> layer_of;  // by kind and name
    std::unordered_map<const Series*, Tensor> tensors;
    void forget(int rank);  // what its log gave
  };
  using Values = std::map<std::uint32_t, double>;

  void find_starts();
  static void identify(const RankDirectory& lowest, Start& start);
  bool read_some();
  bool read_ranks(Start& start);
  void gather(Start& start, TailNews& news);
  void flush(Start& start);
  void emit_ready(int restart, Start& start, bool all);
  bool is_ready(const Start& start, std::int64_t step) const;
  void emit(int restart, Start& start, std::int64_t step, const std::map<int, TailStep>& ranks);
  void put(Values& values, const PushedSeries& series, bool is_of_lead, double value);
  void put_own(Values& values, const std::map<int, TailStep>& ranks);
  void put_tensors(Values& values, Start& start, const std::map<int, TailStep>& ranks);
  void learn_tensors(Start& start, const std::map<int, TailStep>& ranks);
  void choose_layers(Start& start, const std::vector<std::pair<PushedSeries, std::size_t>>& fresh);

  const std::filesystem::path run_;
  const PushOptions options_;
  const RowFilter filter_;
  std::optional<PositionFile> file_;
  std::map<int, Start> starts_;  // by restart
  PushPosition position_;        // what the target has
  PushPosition given_;           // and what look() has given
  SeriesChoice choice_;
  std::deque<PushedStep> ready_;
  std::vector<Damage> damage_;
  std::int64_t damaged_ = 0;
  std::int64_t rows_dropped_ = 0;
  std::int64_t gaps_ = 0;
  std::int64_t late_ = 0;
};

}  // namespace trainmon
