// The command line `trainmon`: data on stdout, remarks on stderr.
#include <unistd.h>

#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <iostream>
#include <string>

#include "base/text.h"
#include "cli/commands.h"
#include "trainmon/error.h"
#include "trainmon/version.h"

namespace trainmon::cli {
namespace {

constexpr const char* kFooter = R"(Exit codes:
  0  fine                 1  something is wrong with the run or config
  2  wrong arguments      3  parts of the run are missing or could not be used
  70 a fault of trainmon

Examples:
  trainmon first-bad runs/a
  trainmon report runs/a -o a.html
  trainmon serve runs --open
  trainmon compare runs/a runs/b
  trainmon top runs/a --kind grads --count 20
  trainmon show runs/a --name layers.1 --steps 100:120
  trainmon tail runs/a -f
  trainmon doctor runs/a --json
  trainmon ctl set runs/a every=100 --at-step 5000

Kinds are named singly (grad_reduced, actv, ...) or by group: grads, weights,
moments, activations. Name patterns match whole components: layers.1 takes
layers.1.weight, never layers.10; * stands for one component, ** for any.)";

bool wants_color(const Context& context) {
  const char* no_color = std::getenv("NO_COLOR");
  const char* terminal = std::getenv("TERM");
  return !context.no_color && (no_color == nullptr || *no_color == '\0') && terminal != nullptr &&
         std::string_view(terminal) != "dumb" && ::isatty(1) == 1;
}

// A first word that is no subcommand, with the one that was probably meant.
void explain_subcommand(const CLI::App& app, int argc, char** argv) {
  if (argc < 2 || argv[1][0] == '-') return;
  const std::string word = argv[1];
  std::vector<std::string> names;
  for (const CLI::App* command : app.get_subcommands({})) names.push_back(command->get_name());
  if (std::find(names.begin(), names.end(), word) != names.end()) return;
  std::cerr << "trainmon: no subcommand '" << printable(word) << "'";
  const std::vector<std::string_view> known(names.begin(), names.end());
  if (const auto nearest = nearest_name(word, known)) {
    std::cerr << ", did you mean '" << *nearest << "'?";
  }
  std::cerr << "\n";
}

// A relative path says only "No such file" then, whatever it names.
void tell_of_no_working_directory() {
  std::error_code error;
  if (!std::filesystem::current_path(error).empty()) return;
  std::cerr << "trainmon: the working directory is gone: give whole paths\n";
}

int run(int argc, char** argv) {
  Context context;
  CLI::App app("Look into training runs that trainmon watched.", "trainmon");
  app.set_version_flag("--version", std::string("trainmon ") + kVersion);
  app.add_flag("--json", context.json, "JSON on stdout (not finite: strings nan inf -inf)");
  app.add_flag("--no-color", context.no_color, "no colour; so does the variable NO_COLOR");
  app.add_flag("--quiet,-q", context.quiet, "no remarks on stderr");
  app.footer(kFooter);
  app.require_subcommand(1);
  app.fallthrough();
  app.parse_complete_callback([&] { context.color = wants_color(context); });
  // In the order and under the heading by which --help lists them.
  const auto add = [&](const char* purpose, const auto&... adders) {
    const std::size_t before = app.get_subcommands({}).size();
    (adders(app, context), ...);
    const auto all = app.get_subcommands({});
    for (std::size_t i = before; i < all.size(); ++i) all[i]->group(purpose);
  };
  add("What went wrong", add_diagnose, add_first_bad, add_compare, add_anomalies, add_top,
      add_blackbox);
  add("Look at a run", add_report, add_serve, add_tail, add_show, add_query, add_plot);
  add("Make other files", add_convert, add_merge, add_compact, add_repair, add_freeze, add_push);
  add("Set up and control", add_config, add_doctor, add_ctl, add_completion);
  tell_of_no_working_directory();
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    // Help and version are "errors" that end well.
    if (error.get_exit_code() != 0) explain_subcommand(app, argc, argv);
    return app.exit(error) == 0 ? kOk : kUsage;
  }
  std::cout.flush();
  if (std::cout) return context.exit_code;
  std::cerr << "trainmon: the answer could not be written to stdout\n";
  return kPartial;
}

}  // namespace
}  // namespace trainmon::cli

int main(int argc, char** argv) {
  std::signal(SIGXFSZ, SIG_IGN);  // a write beyond `ulimit -f` fails, as on a full disk
  using namespace trainmon;
  const auto fail = [](const std::exception& error, int code) {
    std::cout.flush();
    std::cerr << "trainmon: " << printable(error.what()) << "\n";
    return code;
  };
  try {
    return cli::run(argc, argv);
  } catch (const std::invalid_argument& error) {
    return fail(error, cli::kUsage);
  } catch (const std::runtime_error& error) {
    return fail(error, cli::kUsage);
  } catch (const std::exception& error) {
    return fail(error, cli::kInternal);
  }
}
