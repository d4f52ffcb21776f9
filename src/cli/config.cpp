// trainmon config: the schema for editors, and a check of a file before a run uses it.
#include "trainmon/config.h"

#include <iostream>
#include <memory>

#include "base/file.h"
#include "base/text.h"
#include "cli/output.h"

namespace trainmon::cli {
namespace {

constexpr std::int64_t kMaxFile = std::int64_t{1} << 26;

void run_check(const std::string& file, Context& context) {
  std::vector<std::string> faults;
  std::string effective;
  try {
    effective = config_to_json(config_from_json(read_file(file, kMaxFile)));
  } catch (const ConfigError& error) {
    faults = error.faults();
    context.exit_code = kFindings;
  }
  if (context.json) {
    Json out;
    out["valid"] = faults.empty();
    out["faults"] = faults;
    out["effective"] = faults.empty() ? Json::parse(effective) : Json();
    return print_json(out);
  }
  for (const std::string& fault : faults) std::cout << printable(fault) << "\n";
  if (faults.empty()) std::cout << Json::parse(effective).dump(2) << "\n";
  if (context.quiet) return;
  std::cerr << printable(file)
            << (faults.empty() ? " is valid; the effective config is above\n"
                               : ": " + std::to_string(faults.size()) +
                                     (faults.size() == 1 ? " fault\n" : " faults\n"));
}

}  // namespace

void add_config(CLI::App& app, Context& context) {
  CLI::App* command = app.add_subcommand("config", "the config file: its schema, and a check");
  command->require_subcommand(1);
  CLI::App* schema = command->add_subcommand("schema", "print the JSON Schema for editors");
  schema->callback([] { std::cout << config_schema() << "\n"; });
  CLI::App* check = command->add_subcommand("check", "name every fault of a config file");
  const auto file = std::make_shared<std::string>();
  check->add_option("FILE", *file, "JSON file")->required();
  check->callback([file, &context] { run_check(*file, context); });
  command->footer(R"(Exit code 1 when the file has faults.

Examples:
  trainmon config schema > trainmon.schema.json
  trainmon config check monitor.json)");
}

}  // namespace trainmon::cli
