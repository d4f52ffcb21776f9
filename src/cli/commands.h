// What the subcommands share: exit codes, the options every one has, and their entry points.
#pragma once

#include <CLI/CLI.hpp>

namespace trainmon::cli {

// The exit code tells a script what a person reads.
enum ExitCode : int {
  kOk = 0,
  kFindings = 1,  // something is wrong with the run (or the config)
  kUsage = 2,     // wrong arguments, no such run
  kPartial = 3,   // ranks are missing or parts of files unusable: the answer may lack something
  kInternal = 70,
  kInterrupted = 130,  // called off with Ctrl-C
};

struct Context {
  bool json = false;   // one JSON value on stdout instead of text
  bool color = false;  // stdout is a terminal that wants it
  bool no_color = false;
  bool quiet = false;  // no remarks on stderr
  int exit_code = kOk;
};

// Each adds its subcommand; running it sets context.exit_code.
void add_anomalies(CLI::App& app, Context& context);
void add_blackbox(CLI::App& app, Context& context);
void add_compact(CLI::App& app, Context& context);
void add_compare(CLI::App& app, Context& context);
void add_completion(CLI::App& app, Context& context);
void add_convert(CLI::App& app, Context& context);
void add_config(CLI::App& app, Context& context);
void add_ctl(CLI::App& app, Context& context);
void add_diagnose(CLI::App& app, Context& context);
void add_doctor(CLI::App& app, Context& context);
void add_first_bad(CLI::App& app, Context& context);
void add_freeze(CLI::App& app, Context& context);
void add_merge(CLI::App& app, Context& context);
void add_plot(CLI::App& app, Context& context);
void add_push(CLI::App& app, Context& context);
void add_query(CLI::App& app, Context& context);
void add_repair(CLI::App& app, Context& context);
void add_report(CLI::App& app, Context& context);
void add_serve(CLI::App& app, Context& context);
void add_show(CLI::App& app, Context& context);
void add_tail(CLI::App& app, Context& context);
void add_top(CLI::App& app, Context& context);

}  // namespace trainmon::cli
