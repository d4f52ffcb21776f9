// What each rank of a run says of control.json: notes in run.json that the running monitor keeps.
#include "read/controls.h"

#include <map>
#include <nlohmann/json.hpp>

#include "base/json_text.h"
#include "read/run_layout.h"
#include "trainmon/control.h"
#include "trainmon/error.h"

namespace trainmon {
namespace {

using nlohmann::json;

// As it should be written; a note of another form, or of another version, leaves what was read
// before it.
void take_notes(const json& run, RankControl& into) {
  if (const auto config = run.find("config"); config != run.end() && config->is_object()) {
    into.config_json = config->dump();
  }
  const json notes = run.value("notes", json::object());
  into.file_fault = notes.value("control_file", "");
  const auto told = notes.find("control");
  if (told == notes.end() || !told->is_object()) return;
  into.number = told->value("number", into.number);
  into.on = told->value("on", into.on);
  into.since_step = told->value("since_step", into.since_step);
  if (told->contains("waiting")) into.waiting = told->at("waiting").get<std::int64_t>();
  if (told->contains("refused")) {
    into.refused = told->at("refused").get<std::int64_t>();
    into.why = told->value("why", "");
  }
}

}  // namespace

std::vector<RankControl> read_controls(const std::filesystem::path& run) {
  std::map<int, RankControl> newest;
  std::vector<Damage> damage;
  for (const RankDirectory& directory : rank_directories(run)) {
    if (directory.error) continue;
    RankControl rank;
    rank.rank = directory.rank;
    rank.restart = directory.restart;
    if (const auto health = read_health_json(directory, damage)) rank.closed = health->closed;
    try {
      take_notes(json::parse(read_json_text(directory.path / "run.json")), rank);
    } catch (const json::exception&) {
    } catch (const SinkError&) {
    }
    newest.insert_or_assign(rank.rank, std::move(rank));  // in order of restarts
  }
  std::vector<RankControl> ranks;
  for (auto& [number, rank] : newest) ranks.push_back(std::move(rank));
  return ranks;
}

}  // namespace trainmon
