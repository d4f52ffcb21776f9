// trainmon blackbox RUN: who was where when it ended. trainmon freeze RUN keeps a copy of that.
#include "answers/blackbox.h"

#include <unistd.h>

#include <algorithm>
#include <iostream>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>

#include "base/text.h"
#include "cli/follow.h"
#include "cli/output.h"
#include "cli/select.h"
#include "read/missing_ranks.h"

namespace trainmon::cli {
namespace {

constexpr std::int64_t kLongWait = 10'000'000'000;  // ns; a live run is not hung before

std::string_view state_word(const FlightRank& rank) {
  if (rank.closed) return "stopped";
  if (rank.is_suspended) return "suspended";
  return rank.alive == Alive::yes ? "alive" : rank.alive == Alive::no ? "killed" : "unknown";
}

// Others wait for it in vain.
bool does_nothing(const FlightRank& rank) {
  return !rank.closed && (rank.alive == Alive::no || rank.is_suspended);
}

std::string seconds_text(std::int64_t ns) {
  return short_number(static_cast<double>(std::max<std::int64_t>(ns, 0)) / 1e9) + " s";
}

std::string ranks_words(const std::vector<int>& ranks) {
  return (ranks.size() == 1 ? "rank " : "ranks ") + ranks_text(ranks);
}

std::string call_text(const FlightCall& call) {
  return call.operation + " " + std::to_string(call.number) + " of group " + call.group;
}

std::string inside_text(const FlightRank& rank) {
  if (!rank.inside.empty()) {
    const FlightCall& call = rank.inside.front();
    return (call.waits ? "waits for " : "in ") + call_text(call);
  }
  return rank.last ? "left " + call_text(*rank.last) : "";
}

bool is_hung(const StuckCollective& stuck) {
  return stuck.is_over || stuck.waited_ns >= kLongWait;
}

// A call between two ranks that takes long: the sentence, or nothing. Its number tells nothing of
// the other rank.
std::string long_wait_text(const FlightRank& rank) {
  for (const FlightCall& call : rank.inside) {
    const std::int64_t waited = waited_ns(rank, call);
    if (!call.is_point_to_point || waited < kLongWait) continue;
    return "rank " + std::to_string(rank.rank) + " has waited for " + seconds_text(waited) +
           " in " + call_text(call) + ", between two ranks";
  }
  return "";
}

std::string stuck_text(const StuckCollective& stuck) {
  const auto& [operation, ranks] = *stuck.inside.begin();
  const bool is_one = ranks.size() == 1 && stuck.inside.size() == 1;
  const std::string number = std::to_string(stuck.number) + " of group " + stuck.group;
  std::string text;
  if (stuck.inside.size() > 1) {
    text = "ranks disagree on call " + number + ":";
    for (const auto& [name, of] : stuck.inside) text += " " + ranks_words(of) + " in " + name + ",";
    text.back() = ';';
    return text + " waited for " + seconds_text(stuck.waited_ns);
  }
  const std::string call = operation + " " + number;
  const std::string waits = ranks_words(ranks) + (is_one ? " has" : " have") + " waited for " +
                            seconds_text(stuck.waited_ns);
  if (!stuck.absent.empty()) {
    text = ranks_words(stuck.absent) + (stuck.absent.size() == 1 ? " has" : " have") +
           " not entered " + call + ", in which " + waits;
  } else {
    text = waits + " in " + call + ", which " +
           (stuck.unknown.empty() ? "every rank of the group has entered"
                                  : "all ranks that tell have entered");
  }
  if (!stuck.unknown.empty()) text += "; " + ranks_words(stuck.unknown) + " do not tell";
  return text;
}

Json json_call(const FlightCall& call) {
  return {{"operation", call.operation}, {"group", call.group},
          {"number", call.number},       {"bytes", call.bytes},
          {"waits", call.waits},         {"point_to_point", call.is_point_to_point},
          {"since_ns", call.since_ns}};
}

Json json_rank(const FlightRank& rank) {
  Json inside = Json::array();
  for (const FlightCall& call : rank.inside) inside.push_back(json_call(call));
  return {{"rank", rank.rank},
          {"restart", rank.restart},
          {"file", rank.file.string()},
          {"state", state_word(rank)},
          {"step", rank.step ? Json(*rank.step) : Json()},
          {"place", rank.place},
          {"inside", inside},
          {"last_collective", rank.last ? json_call(*rank.last) : Json()},
          {"last_event_ns", rank.last_ns},
          {"seen_alive_ns", rank.seen_ns},
          {"events", rank.events},
          {"overwritten", rank.overwritten},
          {"unfinished", rank.unfinished},
          {"damaged", rank.damaged},
          {"names_lost", rank.names_lost}};
}

void print_json_box(const BlackBox& box, bool in_a_line) {
  Json out;
  out["stuck"] = Json::array();
  for (const StuckCollective& stuck : box.stuck) {
    Json inside = Json::object();
    for (const auto& [operation, ranks] : stuck.inside) inside[operation] = ranks;
    out["stuck"].push_back({{"group", stuck.group},
                            {"number", stuck.number},
                            {"inside", inside},
                            {"absent", stuck.absent},
                            {"unknown", stuck.unknown},
                            {"waited_seconds", static_cast<double>(stuck.waited_ns) / 1e9},
                            {"hung", is_hung(stuck)}});
  }
  out["ranks"] = Json::array();
  for (const FlightRank& rank : box.ranks) out["ranks"].push_back(json_rank(rank));
  out["without_recorder"] = box.without;
  out["damage"] = Json::array();
  for (const Damage& damage : box.damage) {
    out["damage"].push_back({{"file", damage.file.string()}, {"what", damage.what}});
  }
  in_a_line ? print_json_line(out) : print_json(out);
}

void print_text(const BlackBox& box, const Context& context) {
  for (const StuckCollective& stuck : box.stuck) {
    const std::string text = printable(stuck_text(stuck));
    std::cout << (is_hung(stuck) ? red(context, text) : text) << "\n";
  }
  bool has_waits = !box.stuck.empty();
  for (const FlightRank& rank : box.ranks) {
    const std::string text = printable(long_wait_text(rank));
    if (text.empty()) continue;
    std::cout << red(context, text) << "\n";
    has_waits = true;
  }
  if (has_waits) std::cout << "\n";
  TextTable table({{"rank"},
                   {"process", TextTable::Align::left},
                   {"step"},
                   {"where", TextTable::Align::left},
                   {"last collective", TextTable::Align::left, true},
                   {"last event", TextTable::Align::left},
                   {"kept"},
                   {"overwritten"}});
  for (const FlightRank& rank : box.ranks) {
    table.add(
        {std::to_string(rank.rank), std::string(state_word(rank)),
         rank.step ? std::to_string(*rank.step) : "-", rank.place, printable(inside_text(rank)),
         utc_text(rank.last_ns), grouped(static_cast<std::int64_t>(rank.events)),
         grouped(static_cast<std::int64_t>(rank.overwritten))},
        does_nothing(rank));
  }
  table.print(context);
}

struct BlackBoxArguments {
  std::string run;
  bool follow = false;
  double interval = 1.0;
};

// Sets the exit code of what is there now.
void print_box(const BlackBox& box, bool follows, Context& context) {
  context.exit_code = kOk;
  const auto waits_long = [](const FlightRank& rank) { return !long_wait_text(rank).empty(); };
  if (std::ranges::any_of(box.ranks, does_nothing) || std::ranges::any_of(box.stuck, is_hung) ||
      std::ranges::any_of(box.ranks, waits_long)) {
    context.exit_code = kFindings;
  }
  for (const Damage& damage : box.damage) {
    context.exit_code = kPartial;
    std::cerr << "trainmon: not used: " << printable(damage.file.native()) << ": "
              << printable(damage.what) << "\n";
  }
  if (!box.without.empty()) {
    context.exit_code = kPartial;
    std::cerr << "trainmon: " << ranks_words(box.without) << " left no flight recorder\n";
  }
  for (const FlightRank& rank : box.ranks) {
    if (rank.unfinished == 0 || context.quiet) continue;
    std::cerr << "rank " << rank.rank << ": " << rank.unfinished
              << (rank.unfinished == 1 ? " event was" : " events were") << " being written\n";
  }
  if (context.json) return print_json_box(box, follows);
  print_text(box, context);
}

// What a look differs in from the one before, but for how long somebody waits. Without a terminal
// no look takes the place of the one before, so only what is new is told.
std::string state_of(const BlackBox& box) {
  std::string state;
  const auto add = [&](const auto&... parts) { ((state += parts, state += '\n'), ...); };
  for (const StuckCollective& stuck : box.stuck) {
    add(stuck.group, std::to_string(stuck.number), ranks_text(stuck.absent),
        ranks_text(stuck.unknown), is_hung(stuck) ? "hung" : "");
    for (const auto& [operation, ranks] : stuck.inside) add(operation, ranks_text(ranks));
  }
  for (const FlightRank& rank : box.ranks) {
    add(std::to_string(rank.rank), std::to_string(rank.restart), std::string(state_word(rank)),
        std::to_string(rank.step.value_or(-1)), rank.place, inside_text(rank),
        long_wait_text(rank).empty() ? "" : "long");
  }
  for (const Damage& damage : box.damage) add(damage.file.native(), damage.what);
  return state;
}

// A start that has just begun has no recorder for a moment.
std::optional<BlackBox> look(const std::string& run, int& misses) {
  constexpr int kPatience = 10;
  try {
    return read_black_box(run);
  } catch (const std::runtime_error&) {
    if (++misses > kPatience) throw;
  }
  return std::nullopt;
}

void follow(const BlackBoxArguments& arguments, Context& context) {
  if (!wait_for_start(arguments.run, arguments.interval, context)) return;
  const bool is_terminal = !context.json && ::isatty(STDOUT_FILENO) == 1;
  std::string before;
  int misses = 0;
  do {
    const std::optional<BlackBox> box = look(arguments.run, misses);
    if (!box) continue;
    misses = 0;
    std::string now = state_of(*box);
    if (!is_terminal && now == before) continue;
    if (is_terminal) std::cout << "\x1b[H\x1b[2J";
    if (!is_terminal && !context.json && !before.empty()) std::cout << "\n";
    before = std::move(now);
    print_box(*box, true, context);
    if (is_terminal && !context.quiet) std::cerr << "refreshing; Ctrl-C ends\n";
    std::cout.flush();
  } while (std::cout && wait_to_look(arguments.interval));
}

}  // namespace

void add_blackbox(CLI::App& app, Context& context) {
  CLI::App* command =
      app.add_subcommand("blackbox", "where each rank was when it hung or was killed");
  const auto given = std::make_shared<BlackBoxArguments>();
  command->add_option("RUN", given->run, "run directory")->required();
  command->add_flag("-f,--follow", given->follow, "look again and again, until Ctrl-C");
  command->add_option("--interval", given->interval, "seconds between two looks")
      ->capture_default_str()
      ->check(CLI::Range(0.01, 3600.0));
  command->footer(
      R"(Reads the flight recorders of all ranks (recorder_mb=64 of watch), of a live run
too. Says which rank has not entered a collective that others wait in. Exit code
1 when a rank was killed, or ranks wait in a call for 10 seconds or more.
Exit code 3 when a recorder is missing or damaged. -f waits for the first start,
follows restarts, and gives the exit code of its last look. The run is not
stopped. A terminal shows the newest look, a pipe each look that differs from
the one before, with --json an object per line.

Examples:
  trainmon blackbox runs/a
  trainmon blackbox runs/a -f
  trainmon blackbox runs/a --json
  trainmon blackbox runs/a/frozen_0001)");
  command->callback([given, &context] {
    if (given->follow) return follow(*given, context);
    print_box(read_black_box(given->run), false, context);
  });
}

void add_freeze(CLI::App& app, Context& context) {
  CLI::App* command = app.add_subcommand("freeze", "keep a copy of the flight recorders");
  const auto run = std::make_shared<std::string>();
  command->add_option("RUN", *run, "run directory, of a live run too")->required();
  command->footer(R"(Prints the name of the copy, RUN/frozen_0001 or the next free number, which
trainmon blackbox reads as a run.

Examples:
  trainmon freeze runs/a)");
  command->callback([run, &context] {
    const std::string copy = freeze_black_box(*run).string();
    if (context.json) return print_json(Json{{"frozen", copy}});
    std::cout << printable(copy) << "\n";
  });
}

}  // namespace trainmon::cli
