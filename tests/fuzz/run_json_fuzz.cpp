// run.json and health.json: what cannot be read is damage; what can is believed only as far as its
// types go.
#include <nlohmann/json.hpp>

#include "base/json_text.h"
#include "fuzz.h"
#include "read/run_layout.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace trainmon;
  const std::string_view text = fuzz::text_of(data, size);
  const RankDirectory place{0, 0, fuzz::scratch(), {}};
  fuzz::put(place.path / "run.json", text);
  fuzz::put(place.path / "health.json", text);
  std::vector<Damage> of_run, of_health;
  const RunFacts facts = read_run_json(place, of_run);
  const auto health = read_health_json(place, of_health);
  const bool is_object =
      !is_too_deep(text) && nlohmann::json::parse(text, nullptr, false).is_object();
  if (!is_object) fuzz::check(!of_run.empty(), "a run.json that is no object is damage");
  if (!is_object) fuzz::check(!of_health.empty(), "a health.json that is no object is damage");
  fuzz::check(health.has_value() == is_object, "health.json is read when it is an object");
  fuzz::check(facts.world_size >= 0, "no negative number of ranks");
  return 0;
}
