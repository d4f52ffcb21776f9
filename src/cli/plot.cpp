// trainmon plot: pictures, drawn by matplotlib in Python.
#include <string>
#include <vector>

#include "cli/commands.h"
#include "cli/python.h"

namespace trainmon::cli {

void add_plot(CLI::App& app, Context& context) {
  CLI::App* command = app.add_subcommand("plot", "pictures of a run (needs matplotlib)");
  command->prefix_command();
  command->allow_extras();
  command->fallthrough(false);  // every word that follows is for the Python program
  // Its own help is the one of the Python program.
  command->set_help_flag();
  command->callback([command, &context] {
    std::vector<std::string> arguments = command->remaining();
    if (context.quiet) arguments.emplace_back("--quiet");
    run_python("trainmon.plot", arguments);
  });
}

}  // namespace trainmon::cli
