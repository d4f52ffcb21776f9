#include "answers/push_position.h"

#include <nlohmann/json.hpp>
#include <stdexcept>
#include <utility>

#include "base/json_text.h"
#include "base/text.h"

namespace trainmon {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

File locked(const fs::path& folder) {
  make_directories(folder);
  File lock = lock_directory(folder);
  if (lock.is_open()) return lock;
  throw std::runtime_error("--state " + printable(folder.native()) +
                           ": another push holds it, or the file system has no locks");
}

PushPosition parsed(const std::string& text) {
  const json said = json::parse(text);
  PushPosition position;
  position.steps = said.at("steps").get<std::map<std::string, std::int64_t>>();
  position.verdict = said.at("verdict").get<std::string>();
  if (said.contains("ranks")) position.ranks = said.at("ranks").get<std::vector<int>>();
  for (const json& one : said.at("chosen")) {
    const auto family = family_from_name(one.at(0).get<std::string>());
    if (!family) throw std::invalid_argument("no such family of series");
    position.chosen.push_back({*family, one.at(1).get<std::string>(), one.at(2).get<std::string>(),
                               one.at(3).get<int>()});
  }
  return position;
}

}  // namespace

PositionFile::PositionFile(fs::path folder)
    : path_(folder / "position.json"), lock_(locked(folder)) {
  if (!fs::exists(path_)) return;
  try {
    at_start_ = parsed(read_json_text(path_));
  } catch (const std::exception& error) {
    throw std::runtime_error(printable(path_.native()) + " is no position of a push (" +
                             printable(error.what()) +
                             "); without this file everything is pushed again");
  }
}

void PositionFile::write(const PushPosition& position) const {
  json chosen = json::array();
  for (const PushedSeries& one : position.chosen) {
    chosen.push_back({family_name(one.family), one.kind, one.name, one.rank});
  }
  const json whole = {{"steps", position.steps},
                      {"verdict", position.verdict},
                      {"ranks", position.ranks.value_or(std::vector<int>())},
                      {"chosen", std::move(chosen)}};
  replace_durably(path_, whole.dump(1, ' ', false, json::error_handler_t::replace) + "\n");
}

}  // namespace trainmon
