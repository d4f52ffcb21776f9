// Which rows of a run are asked for; kinds, names, ranks and steps as ReadOptions has them.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "read/kind_selection.h"
#include "trainmon/read.h"

namespace trainmon {

// Whether kinds, names, ranks or steps are asked for.
bool chooses_rows(const ReadOptions& options);
// Of an answer from `rows` rows: a sentence where a selection took none, else "". A misspelt name
// must not look like good news.
std::string no_match_text(const RunRows& run, std::int64_t rows, const ReadOptions& options);

class RowFilter {
 public:
  explicit RowFilter(const ReadOptions& options) : options_(options), kinds_(options.kinds) {}
  bool takes_rank(int rank) const;
  bool takes_kind(std::string_view kind) const { return kinds_.takes(kind); }
  bool takes_name(std::string_view name) const;
  bool takes(const Series& series) const {
    return takes_kind(series.kind) && takes_name(series.name);
  }
  bool takes_step(std::int64_t step) const;
  // Throws std::invalid_argument for a kind asked for that is not among those present.
  void check_kinds(const std::vector<std::string>& present) const { kinds_.check(present); }

 private:
  const ReadOptions options_;
  const KindSelection kinds_;
};

}  // namespace trainmon
