// What a monitor is asked for its flight recorder alone.
#include "monitor/state.h"
#include "trainmon/monitor.h"

namespace trainmon {

bool Monitor::has_recorder() const {
  return state_->recorder != nullptr;
}

std::vector<std::filesystem::path> Monitor::flight_copies() const {
  std::vector<std::filesystem::path> folders;
  if (!has_recorder() || state_->forked()) return folders;
  state_->attempt("the flight recorder", [&] { folders = state_->flight_copies->folders(); });
  return folders;
}

std::uint32_t Monitor::flight_word(std::string_view text) {
  return has_recorder() && state_->alive() ? state_->recorder->word(text) : 0;
}

std::uint32_t Monitor::flight_group(std::string_view name, std::string_view ranks) {
  return has_recorder() && state_->alive() ? state_->recorder->group(name, ranks) : 0;
}

void Monitor::note_stage(FlightStage stage) {
  if (state_->alive()) state_->collector.note_stage(stage, state_->config.clock);
}

void Monitor::note_collective(const CollectiveCall& call) {
  if (state_->alive()) state_->collector.note_collective(call);
}

}  // namespace trainmon
