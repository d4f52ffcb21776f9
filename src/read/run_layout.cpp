// JSON written by others is read entry by entry: one odd value never hides the rest.
#include "read/run_layout.h"

#include <algorithm>
#include <cstdio>
#include <limits>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <tuple>
#include <type_traits>

#include "base/json_text.h"
#include "base/restart_folder.h"
#include "read/account.h"
#include "trainmon/error.h"

namespace trainmon {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

constexpr std::int64_t kMostSteps = std::int64_t{1} << 53;
constexpr std::int64_t kMaxWorldSize = std::int64_t{1} << 20;  // whoever says more is not believed

// rank_00003, and shorter ones, as somebody may have called a copy.
std::optional<int> rank_number(const fs::path& folder) {
  const std::string name = folder.filename().string();
  int number = -1, length = 0;
  if (std::sscanf(name.c_str(), "rank_%9d%n", &number, &length) != 1 || number < 0 ||
      static_cast<std::size_t>(length) != name.size()) {
    return std::nullopt;
  }
  return number;
}

// Subdirectories that have a number, by it, the longest names first. What cannot be told to be one
// is taken for it: whoever looks inside finds out.
std::vector<std::pair<int, fs::path>> numbered(const fs::path& directory,
                                               std::optional<int> (*number_of)(const fs::path&),
                                               std::error_code& error) {
  std::vector<std::pair<int, fs::path>> found;
  for (fs::directory_iterator entry(directory, error), end; !error && entry != end;
       entry.increment(error)) {
    const std::optional<int> number = number_of(entry->path());
    if (!number) continue;
    std::error_code unknown;
    const bool is_directory = fs::is_directory(entry->path(), unknown);
    if (is_directory || unknown == std::errc::permission_denied) {
      found.emplace_back(*number, entry->path());
    }
  }
  std::ranges::sort(found, {}, [](const auto& one) {
    return std::tuple(one.first, -std::ssize(one.second.native()), one.second);
  });
  return found;
}

std::vector<RankDirectory> find_directories(const fs::path& run, std::error_code& error) {
  std::vector<RankDirectory> found;
  std::optional<int> last;
  for (const auto& [rank, path] : numbered(run, rank_number, error)) {
    if (last == rank) {  // the longer name came first
      found.push_back({rank, -1, path, std::make_error_code(std::errc::file_exists)});
      continue;
    }
    last = rank;
    std::error_code of_rank;
    for (const auto& [restart, directory] : numbered(path, restart_number, of_rank)) {
      found.push_back({rank, restart, directory, {}});
    }
    if (of_rank) found.push_back({rank, -1, path, of_rank});
  }
  std::ranges::stable_sort(found, {},
                           [](const auto& one) { return std::pair(one.rank, one.restart); });
  return found;
}

// What to say when `run` holds none: runs one level down are the likely intention.
std::string no_run_text(const fs::path& run) {
  std::string text = "no run in " + run.string() + ": it has no rank_*/restart_* directory";
  const std::vector<fs::path> inside = runs_in(run);
  for (std::size_t i = 0; i < inside.size() && i < 5; ++i) {
    text += (i == 0 ? "; did you mean " : ", ") + inside[i].string();
  }
  return text;
}

std::system_error cannot_read(const fs::path& path, std::error_code error) {
  return std::system_error(error, "cannot read " + path.string());
}

std::optional<json> load(const fs::path& path, std::vector<Damage>& damage) {
  try {
    json value = json::parse(read_json_text(path));
    if (value.is_object()) return value;
    damage.push_back({path, 0, "not a JSON object"});
  } catch (const json::parse_error& error) {
    const auto at = static_cast<std::int64_t>(error.byte == 0 ? 0 : error.byte - 1);
    damage.push_back({path, at, "no JSON from here on"});
  } catch (const json::exception&) {
    damage.push_back({path, 0, "a number in it is out of range"});
  } catch (const SinkError& error) {
    damage.push_back({path, 0, error.what()});
  }
  return std::nullopt;
}

// A process that died between claiming its directory and writing the first file into it.
bool died_at_start(const fs::path& directory) {
  std::error_code error;
  for (fs::directory_iterator entry(directory, error), end; !error && entry != end;
       entry.increment(error)) {
    if (entry->path().filename() != "run.json.tmp") return false;
  }
  return !error;
}

// nlohmann casts any number to any other: 1e300 and 2^63 are no std::int64_t.
bool fits(const json& value, int depth = 0) {
  if (value.is_number_float()) return false;
  if (value.is_number_unsigned()) return value.get<std::uint64_t>() <= INT64_MAX;
  if (!value.is_structured() || depth > 0) return true;  // nothing that is taken is deeper
  return std::all_of(value.begin(), value.end(),
                     [&](const json& one) { return fits(one, depth + 1); });
}

// Entries of a JSON file that is read as far as it can be understood.
struct Entries {
  const json& object;
  const fs::path& path;
  std::vector<Damage>& damage;

  // Of another type than it should be: the default stays, and it is said.
  template <typename T>
  void take(const char* key, T& value) const {
    const auto found = object.find(key);
    if (found == object.end() || found->is_null()) return;
    try {
      const bool is_real = std::is_same_v<T, double> && found->is_number();
      if (is_real || fits(*found)) {
        T taken = found->get<T>();
        if constexpr (std::is_same_v<T, int>) {
          if (found->get<std::int64_t>() != taken) throw std::out_of_range(key);
        }
        value = std::move(taken);
        return;
      }
    } catch (const std::exception&) {  // std::out_of_range, json::exception
    }
    damage.push_back({path, 0, std::string(key) + " is not what it should be; it is not used"});
  }
};

// The note of a monitor with a budget; nullopt without one, or of another form than ours.
std::optional<RankBudget> budget_of(const json& run) {
  try {
    const json& note = run.at("notes").at("budget");
    RankBudget budget;
    budget.budget = note.at("budget").get<double>();
    if (!note.at("share").is_null()) budget.share = note.at("share").get<double>();
    budget.out_of_reach = note.at("out_of_reach").get<bool>();
    const json& kept = note.at("kept");
    for (const json* count : {&kept.at(0), &kept.at(1), &note.at("every")}) {
      if (!count->is_number_unsigned() || *count < 1 || *count > kMostSteps) return std::nullopt;
    }
    budget.part = kept.at(0).get<std::int64_t>();
    budget.of = kept.at(1).get<std::int64_t>();
    budget.every = note.at("every").get<std::int64_t>();
    if (note.at("since_step").is_number_unsigned() && fits(note.at("since_step"))) {
      budget.since_step = note.at("since_step").get<std::int64_t>();
    }
    return budget;
  } catch (const json::exception&) {
    return std::nullopt;
  }
}

}  // namespace

bool is_run(const fs::path& directory) {
  std::error_code error;
  return fs::is_directory(directory, error) && !find_directories(directory, error).empty();
}

std::vector<fs::path> runs_in(const fs::path& parent) {
  std::vector<fs::path> found;
  std::error_code error;
  for (fs::directory_iterator entry(parent, error), end; !error && entry != end;
       entry.increment(error)) {
    if (is_run(entry->path())) found.push_back(entry->path());
  }
  std::ranges::sort(found);
  return found;
}

std::vector<RankDirectory> rank_directories(const fs::path& run) {
  std::error_code error;
  std::vector<RankDirectory> found = find_directories(run, error);
  if (error == std::errc::no_such_file_or_directory) {
    throw std::runtime_error("no such directory: " + run.string());
  }
  if (error == std::errc::not_a_directory) {
    throw std::runtime_error(run.string() + " is not a directory");
  }
  if (error) throw cannot_read(run, error);
  if (found.empty()) throw std::runtime_error(no_run_text(run));
  const bool has_any = std::any_of(found.begin(), found.end(),
                                   [](const RankDirectory& directory) { return !directory.error; });
  if (!has_any) throw cannot_read(found.front().path, found.front().error);
  return found;
}

std::vector<RankDirectory> starts_without(const std::vector<RankDirectory>& directories,
                                          const std::function<bool(int)>& is_asked_for) {
  int oldest = std::numeric_limits<int>::max(), last_rank = -1;
  for (const RankDirectory& place : directories) {
    if (place.error || !is_asked_for(place.rank)) continue;
    oldest = std::min(oldest, place.restart);
    last_rank = std::max(last_rank, place.rank);
  }
  std::vector<RankDirectory> found;
  for (const RankDirectory& place : directories) {
    if (is_asked_for(place.rank) || place.error || place.restart <= oldest) continue;
    std::vector<Damage> not_asked_for;
    const int world_size = read_run_json(place, not_asked_for).world_size;
    if (world_size > 0 && world_size <= last_rank) found.push_back(place);
  }
  return found;
}

bool is_newest(const std::vector<RankDirectory>& directories, std::size_t index) {
  return index + 1 == directories.size() || directories[index + 1].rank != directories[index].rank;
}

bool is_last(const std::vector<RankDirectory>& directories, std::size_t index) {
  if (!is_newest(directories, index)) return false;
  const auto restart_of = [](const RankDirectory& one) { return one.error ? -1 : one.restart; };
  const RankDirectory& newest = *std::ranges::max_element(directories, {}, restart_of);
  if (restart_of(newest) <= directories[index].restart) return true;
  std::vector<Damage> said_elsewhere;
  const int world_size = read_run_json(newest, said_elsewhere).world_size;
  return world_size == 0 || directories[index].rank < world_size;
}

RunFacts read_run_json(const RankDirectory& directory, std::vector<Damage>& damage) {
  RunFacts facts;
  if (died_at_start(directory.path)) return facts;
  const fs::path path = directory.path / "run.json";
  const std::optional<json> run = load(path, damage);
  if (!run) return facts;
  const Entries entries{*run, path, damage};
  entries.take("run_id", facts.run_id);
  entries.take("started", facts.process.started);
  entries.take("host", facts.process.host);
  entries.take("pid", facts.process.pid);
  entries.take("pid_namespace", facts.process.pid_namespace);
  entries.take("boot", facts.process.boot);
  entries.take("ticks", facts.process.ticks);
  std::int64_t world_size = 0;
  entries.take("world_size", world_size);
  if (world_size > 0 && world_size <= kMaxWorldSize)
    facts.world_size = static_cast<int>(world_size);
  entries.take("start_steps", facts.start_steps);
  entries.take("covered", facts.covered);
  entries.take("not_covered", facts.not_covered);
  if (const auto config = run->find("config"); config != run->end() && config->is_object()) {
    std::int64_t grad_acc_steps = 0;
    const Entries of_config{*config, path, damage};
    of_config.take("grad_acc_steps", grad_acc_steps);
    if (grad_acc_steps > 0) facts.grad_acc_steps = grad_acc_steps;
    of_config.take("clock", facts.clock);
    of_config.take("checks", facts.has_checks);
    of_config.take("ranks", facts.ranks);
  }
  if (const auto notes = run->find("notes"); notes != run->end() && notes->is_object()) {
    Entries{*notes, path, damage}.take("formulas", facts.formulas);
    const auto control = notes->find("control");
    if (control != notes->end() && control->is_object()) {
      Entries{*control, path, damage}.take("since_step", facts.control_since);
    }
  }
  facts.budget = budget_of(*run);
  return facts;
}

std::optional<StoredHealth> read_health_json(const RankDirectory& directory,
                                             std::vector<Damage>& damage) {
  const fs::path path = directory.path / "health.json";
  std::error_code error;
  if (!fs::exists(path, error)) return std::nullopt;
  const std::optional<json> health = load(path, damage);
  if (!health) return std::nullopt;
  const Entries entries{*health, path, damage};
  StoredHealth stored;
  entries.take("closed", stored.closed);
  entries.take("updated", stored.updated);
  Health& into = stored.health;
  entries.take("rows_produced", into.rows_produced);
  entries.take("rows_pending", into.rows_pending);
  entries.take("refused", into.refused);
  entries.take("scalars_dropped", into.scalars_dropped);
  entries.take("parts_off", into.parts_off);
  entries.take("errors", into.errors);
  entries.take("alerts", into.alerts);
  entries.take("queue_bytes", into.queue_bytes);
  entries.take("queue_bytes_peak", into.queue_bytes_peak);
  entries.take("queue_seconds", into.queue_seconds);
  const auto sinks = health->find("sinks");
  if (sinks == health->end() || !sinks->is_array()) return stored;
  for (const json& entry : *sinks) {
    if (!entry.is_object()) {
      damage.push_back({path, 0, "an entry of sinks is no object; it is not used"});
      continue;
    }
    const Entries of_sink{entry, path, damage};
    SinkHealth sink;
    of_sink.take("name", sink.name);
    of_sink.take("rows_written", sink.rows_written);
    of_sink.take("rows_dropped", sink.rows_dropped);
    of_sink.take("degraded", sink.degraded);
    of_sink.take("batches_written", sink.batches_written);
    into.sinks.push_back(std::move(sink));
  }
  return stored;
}

}  // namespace trainmon
