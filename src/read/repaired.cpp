#include "read/repaired.h"

#include <cstdint>
#include <nlohmann/json.hpp>
#include <set>

#include "base/json_text.h"
#include "base/text.h"

namespace trainmon {

std::vector<std::string> repair_sentences(const std::vector<RankDirectory>& directories,
                                          const std::function<bool(int)>& takes_rank) {
  std::set<int> ranks;
  std::int64_t lost = 0;
  bool is_known = true;
  for (const RankDirectory& place : directories) {
    if (place.error || !takes_rank(place.rank)) continue;
    const std::filesystem::path path = place.path / kRepairFile;
    std::error_code unknown;
    if (!std::filesystem::exists(path, unknown)) continue;
    ranks.insert(place.rank);
    try {
      const auto told = nlohmann::json::parse(read_json_text(path)).at("rows_lost");
      is_known = is_known && told.is_number_unsigned() && told <= INT32_MAX;
      if (is_known) lost += told.get<std::int64_t>();
    } catch (const std::exception&) {
      is_known = false;
    }
  }
  if (ranks.empty()) return {};
  return {"repaired by trainmon repair (" + std::string(ranks.size() == 1 ? "rank " : "ranks ") +
          ranks_text({ranks.begin(), ranks.end()}) +
          "): " + (is_known ? grouped(lost) + " rows are lost" : std::string("rows may be lost")) +
          ", repair.json beside the log says more"};
}

}  // namespace trainmon
