// Whether a list of kinds and groups takes a kind of a run.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace trainmon {

// `asked` holds kinds, groups, "moments" for all that is optimizer state, or "all" for every kind.
// An empty list takes every kind, too.
bool kind_selected(std::string_view kind, const std::vector<std::string>& asked);

}  // namespace trainmon
