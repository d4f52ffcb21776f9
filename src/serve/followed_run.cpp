// The newest step comes from the end of the logs: it is there at once, however long the run is.
#include "serve/followed_run.h"

#include <sys/stat.h>

#include <algorithm>
#include <cmath>
#include <tuple>
#include <utility>

#include "base/md5.h"
#include "base/text.h"
#include "read/completeness.h"
#include "read/run_layout.h"

namespace trainmon::serve {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t kMostLogged = 8;  // values of the newest step

bool counts(const fs::path& file) {
  return file.extension() == ".tmlog" || file.filename() == "run.json";
}

std::string json_value(double value) {
  const std::string text = number_text(value, 6);
  return std::isfinite(value) ? text : json_string(text);
}

std::string json_of(const TailStep& step) {
  std::vector<std::pair<std::string, std::string>> norms, logged;
  for (const auto& [kind, norm] : step.norms) norms.emplace_back(kind, json_value(norm));
  for (const auto& [name, value] : step.scalars) {
    if (logged.size() < kMostLogged) logged.emplace_back(name, json_value(value));
  }
  return json_object(std::vector<std::pair<std::string, std::string>>{
      {"restart", std::to_string(step.restart)},
      {"step", std::to_string(step.outcome.step)},
      {"rank", std::to_string(step.rank)},
      {"non_finite", std::to_string(step.non_finite)},
      {"norms", json_object(norms)},
      {"logged", json_object(logged)}});
}

}  // namespace

Extent extent_of(const fs::path& run) {
  Extent extent;
  Md5 signature;
  int rank = -1;
  const std::vector<RankDirectory> places = rank_directories(run);
  std::vector<Damage> said_elsewhere;
  const RunFacts facts_of_first = read_run_json(places.front(), said_elsewhere);
  extent.origin = facts_of_first.process.started + " " + std::to_string(facts_of_first.process.pid);
  for (const RankDirectory& place : places) {
    extent.ranks += place.rank == rank ? 0 : 1;
    rank = place.rank;
    std::vector<std::string> files;
    std::error_code error;
    for (fs::directory_iterator entry(place.path, error), end; !error && entry != end;
         entry.increment(error)) {
      struct stat facts {};
      if (!counts(entry->path()) || ::stat(entry->path().c_str(), &facts) != 0) continue;
      const std::int64_t time_ns = facts.st_mtim.tv_sec * 1'000'000'000 + facts.st_mtim.tv_nsec;
      files.push_back(entry->path().native() + " " + std::to_string(facts.st_ino) + " " +
                      std::to_string(facts.st_size) + " " + std::to_string(time_ns) + "\n");
      if (entry->path().extension() == ".tmlog") {
        extent.time_ns = std::max(extent.time_ns, time_ns);
      }
    }
    std::ranges::sort(files);
    for (const std::string& one : files) signature.add(one);
  }
  extent.signature = signature.finish();
  return extent;
}

std::string_view state_name(RunState state) {
  switch (state) {
    case RunState::closed:
      return "closed";
    case RunState::gone:
      return "gone";
    case RunState::deleted:
      return "deleted";
    default:
      return "open";
  }
}

RunState state_of(const fs::path& run) {
  const std::optional<WriterState> end = ended(run, {});
  if (!end) return RunState::open;
  return *end == WriterState::closed ? RunState::closed : RunState::gone;
}

std::string state_json(const Seen& seen, const std::string& page, const std::string& error) {
  const std::int64_t time_ns = seen.extent.time_ns;
  const std::string& failed = error.empty() ? seen.error : error;
  return json_object(std::vector<std::pair<std::string, std::string>>{
      {"format", "1"},
      {"state", json_string(state_name(seen.state))},
      {"page", page.empty() ? "null" : json_string(page)},
      {"last_write",
       time_ns == 0 ? "null" : number_text(static_cast<double>(time_ns / 1'000'000) / 1e3)},
      {"newest", seen.newest ? json_of(*seen.newest) : "null"},
      {"error", failed.empty() ? "null" : json_string(printable(failed))}});
}

FollowedRun::FollowedRun(fs::path run) : run_(std::move(run)) {}

const Seen& FollowedRun::look() {
  try {
    const std::string origin = std::exchange(seen_.extent, extent_of(run_)).origin;
    if (origin != seen_.extent.origin) tail_.reset();
    seen_.state = state_of(run_);
    seen_.signature = seen_.extent.signature + std::string(state_name(seen_.state));
    follow();  // also where nothing is new: a step is told after some looks that find nothing
    seen_.error.clear();
  } catch (const std::exception& error) {
    tail_.reset();
    if (is_run(run_)) {
      seen_.error = error.what();
    } else {
      seen_.state = RunState::deleted;  // what was read before stays, and so does its time
    }
  }
  return seen_;
}

void FollowedRun::follow() {
  if (!tail_) {
    seen_.newest.reset();  // of a run that was there before under this name
    tail_.emplace(run_, ReadOptions{}, false, 1);
  }
  const auto place = [](const TailStep& step) {
    return std::tuple(step.restart, step.outcome.step, step.non_finite);
  };
  for (TailStep& step : tail_->look().steps) {
    if (!seen_.newest || place(*seen_.newest) < place(step)) seen_.newest = std::move(step);
  }
}

}  // namespace trainmon::serve
