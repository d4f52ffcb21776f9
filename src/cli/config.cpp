// trainmon config: a file to begin with, what each key means, a check before a run uses it, and the
// schema for editors.
#include "trainmon/config.h"

#include <algorithm>
#include <filesystem>
#include <iostream>
#include <memory>

#include "base/file.h"
#include "base/text.h"
#include "cli/output.h"
#include "config/config_keys.h"

namespace trainmon::cli {
namespace {

namespace fs = std::filesystem;

constexpr std::int64_t kMaxFile = std::int64_t{1} << 26;
constexpr std::string_view kSchemaFile = "config.schema.json";

// --- check ---------------------------------------------------------------------------------------

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

// --- explain -------------------------------------------------------------------------------------

Json json_key(const ConfigKey& key) {
  Json out;
  out["key"] = key.name;
  out["meaning"] = key.meaning;
  out["value"] = key.expectation;
  out["choices"] = key.choices;
  out["default"] = Json::parse(key.fallback);
  out["example"] = Json::parse(key.example);
  return out;
}

// `text` in lines of at most `room` cells, each after the first indented.
std::string wrapped(const std::string& text, std::size_t indent, std::size_t room) {
  std::string out;
  std::size_t used = indent;
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t end = std::min(text.find(' ', at), text.size());
    const std::string word = text.substr(at, end - at);
    const std::size_t width = display_width(word);
    if (used > indent && used + 1 + width > room) {
      out += "\n" + std::string(indent, ' ');
      used = indent;
    } else if (used > indent) {
      out += " ";
      ++used;
    }
    out += word;
    used += width;
    at = end + 1;
  }
  return out;
}

void explain_one(const std::string& name, const std::vector<ConfigKey>& keys, Context& context) {
  const auto found = std::find_if(keys.begin(), keys.end(),
                                  [&](const ConfigKey& key) { return key.name == name; });
  if (found == keys.end()) {
    std::vector<std::string_view> known;
    for (const ConfigKey& key : keys) known.emplace_back(key.name);
    std::string text = "no configuration key '" + name + "'";
    if (const auto nearest = nearest_name(name, known))
      text += ", did you mean '" + *nearest + "'?";
    throw std::invalid_argument(text + "; `trainmon config explain` lists all");
  }
  if (context.json) return print_json(json_key(*found));
  const std::size_t room = std::min<std::size_t>(terminal_width(), 100);
  const auto line = [&](const char* title, const std::string& text) {
    std::cout << "  " << title << std::string(9 - std::string_view(title).size(), ' ')
              << wrapped(text, 11, room) << "\n";
  };
  std::cout << bold(context, found->name) << "\n";
  line("meaning", found->meaning);
  line("value", found->expectation);
  line("default", found->fallback);
  line("example", "\"" + found->name + "\": " + found->example);
}

void run_explain(const std::string& name, Context& context) {
  const std::vector<ConfigKey> keys = config_keys();
  if (!name.empty()) return explain_one(name, keys, context);
  if (context.json) {
    Json out = Json::array();
    for (const ConfigKey& key : keys) out.push_back(json_key(key));
    return print_json(out);
  }
  std::size_t names = 3, defaults = 7;
  for (const ConfigKey& key : keys) {
    names = std::max(names, key.name.size());
    defaults = std::max(defaults, key.fallback.size());
  }
  const auto print = [&](const std::string& key, const std::string& fallback,
                         const std::string& meaning) {
    return key + std::string(names - key.size() + 2, ' ') + fallback +
           std::string(defaults - fallback.size() + 2, ' ') +
           wrapped(meaning, names + defaults + 4, std::min<std::size_t>(terminal_width(), 120));
  };
  std::cout << bold(context, print("key", "default", "meaning")) << "\n";
  for (const ConfigKey& key : keys) {
    std::cout << print(key.name, key.fallback, key.meaning) << "\n";
  }
}

// --- init ----------------------------------------------------------------------------------------

// The schema that was installed with this program: in the Python package beside it.
std::optional<fs::path> shipped_schema() {
  std::error_code error;
  const fs::path self = fs::read_symlink("/proc/self/exe", error);
  if (error) return std::nullopt;
  const fs::path beside = self.parent_path().parent_path();  // of bin/, or of src/cli/
  std::vector<fs::path> folders = {beside.parent_path() / "python" / "trainmon"};
  for (fs::directory_iterator entry(beside / "lib", error), end; !error && entry != end;
       entry.increment(error)) {
    folders.push_back(entry->path() / "site-packages" / "trainmon");
    folders.push_back(entry->path() / "dist-packages" / "trainmon");
  }
  for (const fs::path& folder : folders) {
    std::error_code missing;
    if (fs::exists(folder / kSchemaFile, missing)) return folder / kSchemaFile;
  }
  return std::nullopt;
}

// Relative where the schema lies below the folder of the config file (a virtual environment in the
// project): the project may then be moved.
std::string reference(const fs::path& schema, const fs::path& folder) {
  const fs::path relative = schema.lexically_relative(folder);
  const bool is_below = !relative.empty() && *relative.begin() != "..";
  return is_below ? "./" + relative.generic_string() : schema.generic_string();
}

struct InitArguments {
  std::string out;
  bool all = false;
};

void run_init(const InitArguments& given, const Context& context) {
  std::error_code error;
  const fs::path file = given.out;
  const fs::path folder = fs::absolute(file, error).lexically_normal().parent_path();
  Json config;
  const std::optional<fs::path> schema = shipped_schema();
  // Without an installed schema an editor needs a copy.
  const fs::path copy = folder / "trainmon.schema.json";
  if (schema) {
    config["$schema"] = given.out.empty() ? schema->generic_string() : reference(*schema, folder);
  } else if (!given.out.empty()) {
    config["$schema"] = "./" + copy.filename().generic_string();
  }
  for (const ConfigKey& key : config_keys()) {
    if (given.all || key.is_starter) config[key.name] = Json::parse(key.fallback);
  }
  const std::string text = config.dump(2) + "\n";
  if (given.out.empty()) {
    std::cout << text;
    return;
  }
  try {
    write_at(create_file(file), 0, text, file);
  } catch (const SinkError& failure) {
    if (failure.reason() != "exists") throw;
    throw std::runtime_error(given.out + " exists; init writes no file anew");
  }
  if (!schema) write_atomically(copy, config_schema());
  if (context.quiet) return;
  std::cerr << printable(given.out) << " written, with "
            << (given.all ? "every key" : "the keys of a first run")
            << " at its default; `trainmon config explain` tells of all\n";
}

}  // namespace

void add_config(CLI::App& app, Context& context) {
  CLI::App* command = app.add_subcommand("config", "the config file: begin one, explain, check");
  command->require_subcommand(1);

  CLI::App* init = command->add_subcommand("init", "a config file to begin with");
  const auto given = std::make_shared<InitArguments>();
  init->add_option("-o,--out", given->out, "write it there; must not exist")->type_name("FILE");
  init->add_flag("--all", given->all, "every key, not only those of a first run");
  init->footer(R"(Its "$schema" names the JSON Schema that was installed with trainmon: an editor
completes and checks the file offline.

Examples:
  trainmon config init
  trainmon config init -o monitor.json
  trainmon config init --all | less)");
  init->callback([given, &context] { run_init(*given, context); });

  CLI::App* explain = command->add_subcommand("explain", "meaning, default and range of a key");
  const auto key = std::make_shared<std::string>();
  explain->add_option("KEY", *key, "configuration key; without it, a table of all");
  explain->footer(R"(Examples:
  trainmon config explain
  trainmon config explain every
  trainmon config explain kinds --json)");
  explain->callback([key, &context] { run_explain(*key, context); });

  CLI::App* check = command->add_subcommand("check", "name every fault of a config file");
  const auto file = std::make_shared<std::string>();
  check->add_option("FILE", *file, "JSON file")->required();
  check->footer(R"(The effective config is printed when the file is valid; exit code 1 when it has
faults.

Examples:
  trainmon config check monitor.json
  trainmon config check monitor.json --json)");
  check->callback([file, &context] { run_check(*file, context); });

  CLI::App* schema = command->add_subcommand("schema", "print the JSON Schema for editors");
  schema->footer(R"(JSON Schema 2020-12; a config file names it by its key "$schema".

Examples:
  trainmon config schema > trainmon.schema.json)");
  schema->callback([] { std::cout << config_schema() << "\n"; });

  command->footer(R"(Examples:
  trainmon config init -o monitor.json
  trainmon config explain every
  trainmon config check monitor.json)");
}

}  // namespace trainmon::cli
