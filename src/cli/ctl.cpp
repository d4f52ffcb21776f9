// trainmon ctl: what a run records is changed while it goes on, through RUN/control.json.
#include <fcntl.h>
#include <sys/file.h>

#include <algorithm>
#include <iostream>
#include <memory>
#include <set>
#include <stdexcept>

#include "base/file.h"
#include "base/text.h"
#include "cli/output.h"
#include "read/controls.h"
#include "trainmon/control.h"

namespace trainmon::cli {
namespace {

namespace fs = std::filesystem;

constexpr std::int64_t kMostControlBytes = std::int64_t{1} << 20;

struct CtlOptions {
  std::string run;
  std::vector<std::string> settings;  // KEY=VALUE
  std::optional<std::int64_t> at_step;
};

// One fault per line.
void print_faults(std::string_view what, const std::vector<std::string>& faults) {
  std::cerr << "trainmon: " << printable(what) << ":\n";
  for (const std::string& fault : faults) std::cerr << "  " << printable(fault) << "\n";
}

// Throws ConfigError when the file is not valid.
std::optional<Control> asked_for(const std::string& run) {
  const fs::path path = control_path(run);
  std::error_code unknown;
  if (!fs::exists(path, unknown)) return std::nullopt;
  return control_from_json(read_file(path, kMostControlBytes));
}

// Two at once would each keep half of what the other changed.
File locked(const std::string& run) {
  File directory(::open(run.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (directory.is_open() && ::flock(directory.fd(), LOCK_EX | LOCK_NB) != 0 &&
      errno == EWOULDBLOCK) {
    throw std::runtime_error("another trainmon ctl is changing " + run + "; try again");
  }
  return directory;
}

// Text as a value of this key: a list is separated by commas or JSON; the rest JSON, else text.
Json value_of(const std::string& key, const Json& example, const std::string& text) {
  const bool holds_numbers = key == "ranks";
  const Json parsed = Json::parse(text, nullptr, false);
  if (!example.is_array()) return parsed.is_discarded() ? Json(text) : parsed;
  if (parsed.is_array()) return parsed;
  Json list = Json::array();
  for (std::size_t begin = 0; begin <= text.size();) {
    const std::size_t end = std::min(text.find(',', begin), text.size());
    const std::string element = text.substr(begin, end - begin);
    const Json number = holds_numbers ? Json::parse(element, nullptr, false) : Json();
    list.push_back(number.is_number() ? number : Json(element));
    begin = end + 1;
  }
  return list;
}

std::string with_settings(const std::string& set, const std::vector<std::string>& settings) {
  const Json defaults = Json::parse(config_to_json(Config()));
  Json merged = Json::parse(set);
  std::vector<std::string> faults;
  for (const std::string& setting : settings) {
    const std::size_t equals = setting.find('=');
    if (equals == 0 || equals == std::string::npos) {
      faults.push_back("'" + setting + "' is not of the form KEY=VALUE");
      continue;
    }
    const std::string key = setting.substr(0, equals);
    const std::string value = setting.substr(equals + 1);
    if (value.empty()) {
      merged.erase(key);  // as the run began
    } else {
      merged[key] = value_of(key, defaults.value(key, Json()), value);
    }
  }
  if (!faults.empty()) throw ConfigError(std::move(faults));
  return merged.dump(-1, ' ', false, Json::error_handler_t::replace);
}

// Against what every rank began with.
void check(const Control& control, const std::vector<RankControl>& ranks) {
  std::vector<std::string> faults;
  std::set<std::string> configs;
  for (const RankControl& rank : ranks) configs.insert(rank.config_json);
  for (const std::string& config : configs) {
    try {
      with_control(config.empty() ? Config() : config_from_json(config), control);
    } catch (const ConfigError& error) {
      for (const std::string& fault : error.faults()) {
        if (std::find(faults.begin(), faults.end(), fault) == faults.end()) faults.push_back(fault);
      }
    }
  }
  if (!faults.empty()) throw ConfigError(std::move(faults));
}

std::string change_text(const Control& control) {
  std::string text =
      "change " + std::to_string(control.number) + ": " + (control.on ? "on" : "off");
  const Json set = Json::parse(control.set);
  for (const auto& [key, value] : set.items()) text += " " + key + "=" + value.dump();
  if (control.apply_at_step) text += ", from step " + std::to_string(*control.apply_at_step);
  return printable(text);
}

void run_change(const CtlOptions& options, std::optional<bool> on, Context& context) {
  const std::vector<RankControl> ranks = read_controls(options.run);
  const auto is_closed = [](const RankControl& rank) { return rank.closed; };
  if (std::all_of(ranks.begin(), ranks.end(), is_closed)) {
    throw std::runtime_error(options.run + " has ended: monitoring was stopped on " +
                             (ranks.size() == 1 ? "its rank" : "all of its ranks"));
  }
  const File lock = locked(options.run);
  Control control;
  try {
    control = asked_for(options.run).value_or(Control());
  } catch (const ConfigError& error) {
    print_faults(control_path(options.run).string() + " is not valid; repair or delete it",
                 error.faults());
    context.exit_code = kUsage;
    return;
  }
  for (const RankControl& rank : ranks) control.number = std::max(control.number, rank.number);
  ++control.number;
  if (on) control.on = *on;
  control.apply_at_step = options.at_step;
  try {
    control.set = with_settings(control.set, options.settings);
    check(control, ranks);
  } catch (const ConfigError& error) {
    print_faults("nothing was changed", error.faults());
    context.exit_code = kUsage;
    return;
  }
  const std::string text = control_to_json(control);
  write_atomically(control_path(options.run), text);
  if (context.json) return print_json(Json::parse(text));
  std::cout << change_text(control) << "\n";
  if (!context.quiet) {
    std::cerr
        << "ranks follow within a step, after at most about a second; see: trainmon ctl status "
        << printable(options.run) << "\n";
  }
}

std::string state_of(const RankControl& rank, const std::optional<Control>& asked) {
  if (rank.closed) return "ended";
  if (!rank.file_fault.empty()) return "control.json is not valid: " + rank.file_fault;
  if (rank.refused) return "refused change " + std::to_string(*rank.refused) + ": " + rank.why;
  if (rank.waiting) return "waits with change " + std::to_string(*rank.waiting);
  if (asked && asked->number != rank.number) return "has not taken it up";
  return "follows";
}

Json json_rank(const RankControl& rank) {
  Json out;
  out["rank"] = rank.rank;
  out["restart"] = rank.restart;
  out["ended"] = rank.closed;
  out["number"] = rank.number;
  out["on"] = rank.on;
  out["since_step"] = rank.since_step >= 0 ? Json(rank.since_step) : Json();
  out["waiting"] = rank.waiting ? Json(*rank.waiting) : Json();
  out["refused"] = rank.refused ? Json(*rank.refused) : Json();
  out["why"] = rank.why;
  out["file_fault"] = rank.file_fault;
  return out;
}

void print_status(const std::optional<Control>& asked, const std::string& fault,
                  const std::vector<RankControl>& ranks, const Context& context) {
  if (context.json) {
    Json out;
    out["asked"] = asked ? Json::parse(control_to_json(*asked)) : Json();
    out["fault"] = fault;
    out["ranks"] = Json::array();
    for (const RankControl& rank : ranks) out["ranks"].push_back(json_rank(rank));
    return print_json(out);
  }
  std::cout << (asked           ? "asked for: " + change_text(*asked)
                : fault.empty() ? "nothing is asked for: the run records as it began"
                                : printable(fault))
            << "\n";
  TextTable table({{"rank"},
                   {"restart"},
                   {"change"},
                   {"records", TextTable::Align::left},
                   {"since step"},
                   {"", TextTable::Align::left, true}});
  for (const RankControl& rank : ranks) {
    table.add({std::to_string(rank.rank), std::to_string(rank.restart),
               rank.number > 0 ? std::to_string(rank.number) : "-", rank.on ? "on" : "off",
               rank.since_step >= 0 ? std::to_string(rank.since_step) : "-",
               printable(state_of(rank, asked))},
              rank.refused.has_value() || !rank.file_fault.empty());
  }
  table.print(context);
}

void run_status(const CtlOptions& options, Context& context) {
  const std::vector<RankControl> ranks = read_controls(options.run);
  std::optional<Control> asked;
  std::string fault;
  try {
    asked = asked_for(options.run);
  } catch (const ConfigError& error) {
    fault = "control.json is not valid: " + error.faults().front();
  }
  print_status(asked, fault, ranks, context);
  bool is_wrong = !fault.empty();
  bool is_behind = false;
  for (const RankControl& rank : ranks) {
    if (rank.closed) continue;
    is_wrong = is_wrong || rank.refused || !rank.file_fault.empty();
    is_behind = is_behind || (asked && rank.number != asked->number);
  }
  context.exit_code = is_wrong ? kFindings : is_behind ? kPartial : kOk;
}

using Options = std::shared_ptr<CtlOptions>;

Options add_change(CLI::App& command) {
  const auto options = std::make_shared<CtlOptions>();
  command.add_option("RUN", options->run, "run directory")->required();
  command.add_option("--at-step", options->at_step, "all ranks change before exactly this step")
      ->check(CLI::Range(std::int64_t{0}, std::int64_t{1} << 53));
  return options;
}

}  // namespace

void add_ctl(CLI::App& app, Context& context) {
  CLI::App* ctl = app.add_subcommand("ctl", "change what a run records while it goes on");
  ctl->require_subcommand(1);
  // Before the subcommands, which begin with it.
  ctl->footer(R"(A change stays in RUN/control.json: a restart of the run follows it, too. It
replaces one that still waits for its step. Exit code of status: 1 when a rank
refuses, 3 while one has not followed.

Examples:
  trainmon ctl off runs/a
  trainmon ctl set runs/a every=5 kinds=grads,activations --at-step 1200
  trainmon ctl set runs/a include=layers.3,**.bias exclude=[] every=
  trainmon ctl status runs/a)");
  for (const bool on : {true, false}) {
    CLI::App* command = ctl->add_subcommand(
        on ? "on" : "off", on ? "record again" : "take the hooks off; steps are still counted");
    const Options options = add_change(*command);
    command->callback([=, &context] { run_change(*options, on, context); });
  }
  CLI::App* set = ctl->add_subcommand("set", "another every, kinds, include, ...");
  const Options options = add_change(*set);
  set->add_option("KEY=VALUE", options->settings, "KEY= takes back what the run began with")
      ->required();
  set->callback([=, &context] { run_change(*options, std::nullopt, context); });
  std::string keys;
  for (std::string_view key : changeable_keys()) {
    const bool breaks = keys.size() - (keys.rfind('\n') + 1) + key.size() > 74;
    keys += (breaks ? "\n  " : keys.empty() ? "  " : " ") + std::string(key);
  }
  set->footer("Keys that change while a run goes on:\n" + keys);
  CLI::App* status = ctl->add_subcommand("status", "what is asked for, and which ranks follow");
  const auto watched = std::make_shared<CtlOptions>();
  status->add_option("RUN", watched->run, "run directory")->required();
  status->callback([=, &context] { run_status(*watched, context); });
}

}  // namespace trainmon::cli
