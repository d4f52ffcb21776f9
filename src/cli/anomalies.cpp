// trainmon anomalies DIR: what the alert rules of all ranks found, first things first.
#include "answers/anomalies.h"

#include <algorithm>
#include <charconv>
#include <iostream>
#include <memory>
#include <set>
#include <stdexcept>

#include "base/text.h"
#include "cli/output.h"
#include "cli/select.h"

namespace trainmon::cli {
namespace {

struct AnomaliesOptions {
  std::string directory;
  std::size_t count = 8;
  std::string steps;
  std::string out;
};

// "1,2" or "[1, 2]"; "[]" and "" mean all.
std::set<std::int64_t> parsed_steps(const std::string& text) {
  std::string list = text;
  std::erase(list, ' ');
  const bool is_bracketed = list.size() >= 2 && list.front() == '[' && list.back() == ']';
  if (is_bracketed) list = list.substr(1, list.size() - 2);
  std::set<std::int64_t> steps;
  for (const char *at = list.data(), *end = at + list.size(); at != end;) {
    std::int64_t step = 0;
    const auto [after, error] = std::from_chars(at, end, step);
    if (error != std::errc() || (after != end && (*after != ',' || after + 1 == end))) {
      throw std::invalid_argument("--step: '" + printable(text) + "' is no list such as 1,2");
    }
    steps.insert(step);
    at = after == end ? end : after + 1;
  }
  return steps;
}

Json json_anomaly(const Anomaly& one) {
  return {{"key", one.key},           {"rank", one.rank},
          {"step", one.step},         {"micro_step", one.micro_step},
          {"pp_stage", one.pp_stage}, {"vpp_stage", one.vpp_stage},
          {"call_id", one.call_id},   {"tag_name", one.tag_name},
          {"message", one.message},   {"group_mates", one.group_mates}};
}

void print_text(const AnomalyList& list, std::size_t total, const Context& context) {
  if (total == 0) {
    std::cout << "no alerts in " << list.files << (list.files == 1 ? " rank\n" : " ranks\n");
    return;
  }
  TextTable table({{"#"},
                   {"step"},
                   {"micro"},
                   {"rank"},
                   {"pp"},
                   {"vpp"},
                   {"call"},
                   {"alert", TextTable::Align::left, true}});
  for (std::size_t i = 0; i < list.entries.size(); ++i) {
    const Anomaly& one = list.entries[i];
    table.add({std::to_string(i + 1), std::to_string(one.step), std::to_string(one.micro_step),
               std::to_string(one.rank), std::to_string(one.pp_stage),
               std::to_string(one.vpp_stage), std::to_string(one.call_id), printable(one.message)});
  }
  table.print(context);
  if (context.quiet) return;
  std::cerr << "the first " << grouped(static_cast<std::int64_t>(list.entries.size())) << " of "
            << grouped(static_cast<std::int64_t>(total)) << " alerts\n";
}

void say_what_is_missing(const AnomalyList& list, Context& context) {
  if (!list.missing.ranks.empty()) {
    context.exit_code = kPartial;
    std::cerr << "trainmon: " << missing_text(list.missing) << "\n";
  }
  for (const Damage& damage : list.damage) {
    context.exit_code = kPartial;
    std::cerr << "trainmon: not used: " << printable(damage.file.native()) << ": "
              << printable(damage.what) << "\n";
  }
  say_incomplete(list.incomplete, context);
}

void run_anomalies(const AnomaliesOptions& options, Context& context) {
  AnomalyList list = read_anomalies(options.directory, parsed_steps(options.steps));
  const std::size_t total = list.entries.size();
  list.entries.resize(std::min(total, options.count));
  if (total > 0) context.exit_code = kFindings;
  say_what_is_missing(list, context);
  if (!options.out.empty()) {
    write_anomalies(std::filesystem::path(options.out) / "anomaly_analyse.json", list.entries);
  }
  if (!context.json) return print_text(list, total, context);
  Json out = Json::array();
  for (const Anomaly& one : list.entries) out.push_back(json_anomaly(one));
  print_json(out);
}

}  // namespace

void add_anomalies(CLI::App& app, Context& context) {
  CLI::App* command = app.add_subcommand("anomalies", "what the alert rules found, in order");
  const auto options = std::make_shared<AnomaliesOptions>();
  command->add_option("DIR", options->directory, "run directory, or one with */anomaly.json")
      ->required();
  command->add_option("-k,--count,--topk", options->count, "how many")
      ->capture_default_str()
      ->check(CLI::Range(1, 1000000000));
  command->add_option("-s,--step", options->steps, "only these steps: 1,2 or \"[1,2]\"");
  command->add_option("-o,--out", options->out, "existing directory for anomaly_analyse.json");
  command->footer(R"(Sorted by step and micro step, then in the order of a step, then by call. The
order of a step is: forward by pipeline stage, gradients in reverse, optimizer
state, weights. Exit code 1: there are alerts. 3: the record is incomplete.

Examples:
  trainmon anomalies runs/a
  trainmon anomalies monitor_output/anomaly_detected -k 20 --step 3,4
  trainmon anomalies runs/a --json -o .)");
  command->callback([options, &context] { run_anomalies(*options, context); });
}

}  // namespace trainmon::cli
