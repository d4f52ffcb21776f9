// Which kinds of rows are asked for, singly or by group.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace trainmon {

// `asked` holds kinds, groups, "moments" for all that is optimizer state, or "all" for every kind.
// An empty list takes every kind, too.
bool kind_selected(std::string_view kind, const std::vector<std::string>& asked);

class KindSelection {
 public:
  // Kinds and groups as in ReadOptions.
  explicit KindSelection(const std::vector<std::string>& asked) : asked_(asked) {}

  bool takes(std::string_view kind) const { return kind_selected(kind, asked_); }
  // Throws std::invalid_argument for a name that neither trainmon nor the run knows.
  void check(const std::vector<std::string>& present) const;

 private:
  std::vector<std::string> asked_;
};

}  // namespace trainmon
