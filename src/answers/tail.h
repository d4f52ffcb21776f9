// A run as it grows: what was written since the last look, of every rank and restart.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "answers/rank_tail.h"

namespace trainmon {

class RunTail {
 public:
  // `newest` steps (or rows) per rank of the newest restart that has any are found again by the
  // first call of look(). Of `options` kinds, include, exclude and ranks are followed. Throws as
  // read_run().
  RunTail(std::filesystem::path run, const ReadOptions& options, bool wants_rows,
          std::size_t newest);
  ~RunTail();

  // Reads what is new. Never waits. A step is told when all its rows are there.
  TailNews look();
  // What has not ended: call it once, at the end.
  TailNews unfinished();

  std::size_t ranks() const;

 private:
  using PlaceKey = std::pair<int, int>;  // rank, restart
  void find_places(TailNews& news);

  const std::filesystem::path run_;
  const ReadOptions options_;
  const TailOf tells_;
  const std::size_t newest_;
  std::map<PlaceKey, std::unique_ptr<RankTail>> places_;
  bool is_first_ = true;
};

}  // namespace trainmon
