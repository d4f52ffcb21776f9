// trainmon push RUN --to TARGET: chosen curves of a run for a tracker, by that tracker's own
// library in Python (python/trainmon/bridges).
#include <memory>
#include <string>
#include <vector>

#include "base/text.h"
#include "cli/commands.h"
#include "cli/follow.h"
#include "cli/python.h"

namespace trainmon::cli {
namespace {

struct PushArguments {
  std::string run;
  std::string to;
  std::string project;
  std::string state;
  std::vector<int> ranks;
  int series = 100;
  int port = 9464;
  double interval = 0.5;
  bool follow = false;
  bool no_verdict = false;
};

[[noreturn]] void run_push(const PushArguments& given, const Context& context) {
  std::vector<std::string> words = {"--to",       given.to,
                                    "--series",   std::to_string(given.series),
                                    "--port",     std::to_string(given.port),
                                    "--interval", number_text(given.interval)};
  for (const int rank : given.ranks) words.insert(words.end(), {"--rank", std::to_string(rank)});
  if (!given.project.empty()) words.push_back("--project=" + given.project);
  if (!given.state.empty()) words.push_back("--state=" + given.state);
  if (given.follow) words.emplace_back("--follow");
  if (given.no_verdict) words.emplace_back("--no-verdict");
  if (context.quiet) words.emplace_back("--quiet");
  words.insert(words.end(), {"--", given.run});
  run_python("trainmon.bridges.push", words);
}

}  // namespace

void add_push(CLI::App& app, Context& context) {
  CLI::App* command = app.add_subcommand("push", "chosen curves for W&B, MLflow, Prometheus, ...");
  const auto given = std::make_shared<PushArguments>();
  command->add_option("RUN", given->run, "run directory (`out` of trainmon.watch)")->required();
  command->add_option("--to", given->to, "where the curves go")
      ->required()
      ->check(CLI::IsMember({"wandb", "swanlab", "mlflow", "prometheus", "otlp"}));
  command->add_flag("-f,--follow", given->follow, "go on with what is written, until Ctrl-C");
  command->add_option("--series", given->series, "largest number of curves")
      ->capture_default_str()
      ->check(CLI::Range(40, 10000));
  command->add_option("--rank,--ranks", given->ranks, "rank (repeatable)")->allow_extra_args(false);
  command->add_option("--project", given->project,
                      "project, experiment or service; default: trainmon");
  command->add_option("--port", given->port, "port of the page for Prometheus, on 127.0.0.1")
      ->capture_default_str()
      ->check(CLI::Range(1, 65535));
  command->add_option("--interval", given->interval, "seconds between two looks")
      ->capture_default_str()
      ->check(CLI::Range(0.01, 3600.0));
  command->add_option("--state", given->state, "state folder; default: in ~/.local/state/trainmon");
  command->add_flag("--no-verdict", given->no_verdict, "do not send the verdict of diagnose");
  command->footer(
      R"(Reads only the log; the training does not notice it. Needs trainmon's Python and
the library of the target: pip install wandb (or swanlab, mlflow,
prometheus_client, opentelemetry-exporter-otlp-proto-http). Each library finds
its server and its key by its own variables and files: WANDB_API_KEY,
SWANLAB_API_KEY, MLFLOW_TRACKING_URI, OTEL_EXPORTER_OTLP_ENDPOINT, ...
The command sends what mon.log was given, norms of kinds, tensors that were the
worst of a step, and layers. It counts the curves beyond --series.
After a stop the same command continues where it was. A target that does not
answer is asked again: five times, or with -f until Ctrl-C.
Prometheus reads the newest values from 127.0.0.1, so it needs -f.
-f waits for the first start where there is none yet. Exit code 3: a part of the
run is missing or was not sent, or Ctrl-C came before the first start.

Examples:
  trainmon push runs/a --to wandb -f
  WANDB_MODE=offline trainmon push runs/a --to wandb
  MLFLOW_TRACKING_URI=sqlite:///mlflow.db trainmon push runs/a --to mlflow
  trainmon push runs/a --to prometheus -f --port 9464
  OTEL_EXPORTER_OTLP_ENDPOINT=http://localhost:4318
      trainmon push runs/a --to otlp -f --series 40)");
  command->callback([given, &context] {
    if (given->follow && !wait_for_start(given->run, given->interval, context)) return;
    run_push(*given, context);
  });
}

}  // namespace trainmon::cli
