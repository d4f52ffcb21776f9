// Ranks are read one after another; of each only what it tells of the end is kept.
#include "answers/blackbox.h"

#include <algorithm>
#include <charconv>
#include <set>
#include <stdexcept>
#include <tuple>

#include "base/file.h"
#include "read/run_layout.h"
#include "recorder/flight_reader.h"
#include "trainmon/flight.h"

namespace trainmon {
namespace {

namespace fs = std::filesystem;
using flight::Slot;
using flight::Type;

constexpr int kMostRanks = 1 << 20;          // whoever says more is not believed
constexpr std::size_t kMostStuck = 1000;     // likewise: a rank is in few calls at once
constexpr std::size_t kMostNamed = 1 << 22;  // ranks that these lack or do not know, in all

// What other ranks are held against.
struct Groups {
  struct Group {
    std::string name;
    std::string ranks;  // as the recorder says them
    int world_size = 0;
    std::uint64_t last = 0;  // number of the collective entered last
  };
  std::map<std::string, Group> by_text;  // name, zero, ranks
  bool is_whole = true;                  // nothing was overwritten
};

struct RankFile {
  RankDirectory directory;
  fs::path file;
};

std::string place_text(std::uint16_t stage) {
  switch (static_cast<FlightStage>(stage)) {
    case FlightStage::forward_begin:
      return "in the forward";
    case FlightStage::forward_end:
      return "after the forward";
    case FlightStage::backward_begin:
      return "in the backward";
    case FlightStage::backward_end:
      return "after the backward";
    case FlightStage::step_begin:
      return "in the optimizer's step";
    case FlightStage::step_end:
      return "after the step";
  }
  return "in an unknown stage";
}

// "0-3,8" or "*"; nothing for other texts, and for more ranks than there are.
std::vector<int> ranks_of(std::string_view text, int world_size) {
  std::vector<int> ranks;
  const std::string all = "0-" + std::to_string(world_size - 1);
  if (text == "*") text = all;
  const char* at = text.data();
  const char* const end = at + text.size();
  while (at < end) {
    int first = -1, last = -1;
    at = std::from_chars(at, end, first).ptr;
    const bool is_range = at < end && *at == '-';
    if (is_range) at = std::from_chars(at + 1, end, last).ptr;
    if (!is_range) last = first;
    const bool is_sound = 0 <= first && first <= last && last < world_size &&
                          ranks.size() < static_cast<std::size_t>(world_size);
    if (!is_sound || (at < end && *at != ',')) return {};
    for (int rank = first; rank <= last; ++rank) ranks.push_back(rank);
    ++at;
  }
  return ranks;
}

std::map<std::string, Groups::Group>::value_type& group_of(Groups& groups,
                                                           const FlightRecord& record,
                                                           std::uint32_t id) {
  static const std::string unnamed;
  const auto found = record.groups.find(id);
  const std::string& text = found == record.groups.end() ? unnamed : found->second;
  const auto [entry, is_new] = groups.by_text.try_emplace(text);
  if (is_new) {
    const std::size_t zero = std::min(text.find('\0'), text.size());
    entry->second.name = found == record.groups.end() ? "(unnamed)" : text.substr(0, zero);
    if (zero < text.size()) entry->second.ranks = text.substr(zero + 1);
    entry->second.world_size = std::clamp(record.world_size, 1, kMostRanks);
  }
  return *entry;
}

using CallKey = std::tuple<std::uint32_t, std::uint64_t, std::uint16_t>;

// What a rank's events tell of its end.
FlightRank summary(const RankFile& place, const FlightRecord& record, Groups& groups) {
  FlightRank rank;
  rank.rank = place.directory.rank;
  rank.restart = place.directory.restart;
  rank.file = record.path;
  rank.closed = record.closed;
  rank.events = record.events.size();
  rank.overwritten = record.overwritten;
  rank.unfinished = record.unfinished;
  rank.damaged = record.damaged;
  rank.names_lost = record.names_lost;
  rank.place = "before the first step";
  groups.is_whole = record.overwritten == 0;
  std::map<CallKey, FlightCall> inside;
  for (const Slot& event : record.events) {
    rank.last_ns = std::max(rank.last_ns, event.time_ns);
    const auto type = static_cast<Type>(event.type);
    if (type == Type::stage && event.optimizer == record.clock) {
      rank.step = event.step;
      rank.place = place_text(event.detail);
    }
    const CallKey key{event.group, event.number, event.detail};
    if (type == Type::leave) inside.erase(key);
    if (type != Type::enter) continue;
    auto& [text, group] = group_of(groups, record, event.group);
    FlightCall call;
    call.operation = record.word(event.id);
    call.group = group.name;
    call.group_text = text;
    call.number = event.number;
    call.bytes = event.count;
    call.waits = (event.detail & flight::kWaits) != 0;
    call.is_point_to_point = (event.detail & flight::kPointToPoint) != 0;
    call.since_ns = event.time_ns;
    if (!call.is_point_to_point) group.last = std::max(group.last, event.number);
    inside.insert_or_assign(key, call);
    rank.last = call;
  }
  for (auto& [key, call] : inside) rank.inside.push_back(call);
  std::ranges::sort(rank.inside, {}, &FlightCall::since_ns);
  rank.seen_ns = std::max(rank.last_ns, record.beat_ns);
  return rank;
}

// Which of the group's ranks have not entered it.
void find_absent(StuckCollective& stuck, const Groups::Group& group, const std::string& text,
                 const std::map<int, Groups>& groups) {
  for (const int member : ranks_of(group.ranks, group.world_size)) {
    const auto found = groups.find(member);
    if (found == groups.end()) {
      stuck.unknown.push_back(member);
      continue;
    }
    const auto theirs = found->second.by_text.find(text);
    const bool is_there = theirs != found->second.by_text.end();
    if (is_there && theirs->second.last >= stuck.number) continue;
    const bool is_known = is_there || found->second.is_whole;
    (is_known ? stuck.absent : stuck.unknown).push_back(member);
  }
}

// `left_out`: calls that are not among them, for there are too many or they name too many ranks.
std::vector<StuckCollective> stuck_collectives(const std::vector<FlightRank>& ranks,
                                               const std::map<int, Groups>& groups,
                                               std::size_t& left_out) {
  std::map<std::pair<std::string, std::uint64_t>, StuckCollective> found;
  std::size_t named = 0;
  for (const FlightRank& rank : ranks) {
    for (const FlightCall& call : rank.inside) {
      if (call.is_point_to_point) continue;
      const std::string& text = call.group_text;
      const Groups::Group& group = groups.at(rank.rank).by_text.at(text);
      const std::pair key(text, call.number);
      if ((found.size() >= kMostStuck || named >= kMostNamed) && !found.contains(key)) {
        ++left_out;
        continue;
      }
      const auto [entry, is_new] = found.try_emplace(key);
      StuckCollective& stuck = entry->second;
      if (is_new) {
        stuck.group = call.group;
        stuck.number = call.number;
        stuck.is_over = true;
        find_absent(stuck, group, text, groups);
        named += stuck.absent.size() + stuck.unknown.size();
      }
      std::vector<int>& same = stuck.inside[call.operation];
      if (same.empty() || same.back() != rank.rank) same.push_back(rank.rank);
      stuck.waited_ns = std::max(stuck.waited_ns, waited_ns(rank, call));
      if (rank.alive == Alive::yes) stuck.is_over = false;
    }
  }
  std::vector<StuckCollective> all;
  for (auto& [key, stuck] : found) all.push_back(std::move(stuck));
  std::ranges::stable_sort(all, [](const StuckCollective& a, const StuckCollective& b) {
    return std::tuple(a.absent.empty(), -a.waited_ns) < std::tuple(b.absent.empty(), -b.waited_ns);
  });
  return all;
}

// The newest recorder of each rank, without ranks that the newest start does not have.
std::vector<RankFile> newest_files(const fs::path& run) {
  std::vector<RankFile> files;
  const std::vector<RankDirectory> directories = rank_directories(run);
  for (std::size_t i = 0; i < directories.size(); ++i) {
    if (directories[i].error || !is_newest(directories, i)) continue;
    const std::vector<fs::path> rings = flight_files(directories[i].path);
    if (!rings.empty()) files.push_back({directories[i], rings.back()});
  }
  if (files.empty()) {
    throw std::runtime_error("no flight recorder in " + run.string() +
                             ": a run has one with recorder_mb, such as recorder_mb=64");
  }
  return files;
}

void add_process(FlightRank& rank, const RankDirectory& directory, const FlightRecord& record) {
  std::vector<Damage> none;
  const RunFacts facts = read_run_json(directory, none);
  if (facts.process.pid == 0 || facts.process.pid != record.pid) return;
  rank.alive = is_alive(facts.process);
  rank.is_suspended = is_suspended(facts.process);
}

}  // namespace

std::int64_t waited_ns(const FlightRank& rank, const FlightCall& call) {
  const bool is_told = call.since_ns > 0 && rank.seen_ns > call.since_ns;
  return is_told ? rank.seen_ns - call.since_ns : 0;
}

BlackBox read_black_box(const fs::path& run) {
  BlackBox box;
  std::map<int, Groups> groups;
  std::set<int> there;
  int newest = -1, world_size = 0;
  for (const RankFile& place : newest_files(run)) {
    FlightRecord record;
    try {
      record = read_flight(place.file);
    } catch (const SinkError& error) {
      box.damage.push_back({place.file, 0, error.what()});
      continue;
    }
    for (const std::string& what : record.damage) box.damage.push_back({place.file, 0, what});
    if (record.damaged > 0) {
      box.damage.push_back({place.file, 0, std::to_string(record.damaged) + " slots are damaged"});
    }
    const int rank = place.directory.rank;
    box.ranks.push_back(summary(place, record, groups[rank]));
    add_process(box.ranks.back(), place.directory, record);
    there.insert(rank);
    if (place.directory.restart > newest) {
      newest = place.directory.restart;
      world_size = record.world_size;
    }
  }
  // A rank of the newest start stays, whatever world size a damaged file claims.
  std::erase_if(box.ranks, [&](const FlightRank& rank) {
    return rank.rank >= world_size && rank.restart < newest;
  });
  for (int rank = 0; rank < std::min(world_size, kMostRanks); ++rank) {
    if (!there.contains(rank)) box.without.push_back(rank);
  }
  std::size_t left_out = 0;
  box.stuck = stuck_collectives(box.ranks, groups, left_out);
  if (left_out > 0) {
    box.damage.push_back({run, 0, std::to_string(left_out) + " calls more that hang are left out"});
  }
  return box;
}

fs::path freeze_black_box(const fs::path& run) {
  const std::vector<RankFile> files = newest_files(run);
  constexpr int kMost = 9999;
  for (int number = 1; number <= kMost; ++number) {
    char name[32];
    std::snprintf(name, sizeof name, "frozen_%04d", number);
    const fs::path whole = run / name, part = run / (std::string(name) + ".tmp");
    std::error_code error;
    if (fs::exists(whole, error) || !fs::create_directory(part, error)) continue;
    try {
      for (const RankFile& one : files) {
        if (fs::is_symlink(one.file)) throw std::runtime_error(one.file.string() + " is a link");
        const fs::path to = part / fs::relative(one.directory.path, run);
        make_directories(to);
        fs::copy_file(one.file, to / one.file.filename());
      }
      fs::rename(part, whole);
    } catch (...) {
      fs::remove_all(part, error);
      throw;
    }
    return whole;
  }
  throw std::runtime_error("no frozen copy could be made in " + run.string());
}

}  // namespace trainmon
