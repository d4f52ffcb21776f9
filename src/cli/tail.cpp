// trainmon tail RUN: the newest steps, and with -f each further one as it ends.
#include "answers/tail.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <iostream>
#include <memory>
#include <tuple>

#include "answers/diagnose.h"
#include "base/text.h"
#include "cli/follow.h"
#include "cli/output.h"
#include "cli/select.h"
#include "cli/text_lines.h"
#include "read/bad_place.h"
#include "read/completeness.h"

namespace trainmon::cli {
namespace {

struct TailArguments {
  std::string run;
  ReadOptions select;
  std::size_t count = 10;
  std::size_t worst = 8;
  double interval = 0.5;
  bool follow = false;
  bool rows = false;
};

Json json_step(const TailStep& step) {
  Json out;
  out["restart"] = step.restart;
  out["rank"] = step.rank;
  out["optimizer"] = step.outcome.optimizer;
  out["step"] = step.outcome.step;
  out["attempt"] = step.outcome.attempt;
  out["fate"] = step.is_closed ? std::string(fate_name(step.outcome.fate)) : "open";
  out["loss_scale"] = json_number(step.outcome.loss_scale);
  out["time"] = static_cast<double>(step.time_ns) * 1e-9;
  out["rows"] = step.rows;
  out["rows_lost"] = step.rows_lost;
  out["non_finite"] = step.non_finite;
  out["alerts"] = step.alert_count();
  out["rules"] = step.alerts;
  out["norms"] = Json::object();
  for (const auto& [kind, norm] : step.norms) out["norms"][kind] = json_number(norm);
  out["worst"] = Json();
  if (!step.norms.empty()) {
    out["worst"] = Json{{"kind", step.worst.kind},
                        {"name", step.worst.name},
                        {"element", step.worst.element},
                        {"norm", json_number(step.worst_norm)}};
  }
  out["logged"] = Json::object();
  for (const auto& [name, value] : step.scalars) out["logged"][name] = json_number(value);
  return out;
}

// The norm of the first of these kinds that the step has.
std::optional<double> norm_of(const TailStep& step, std::span<const std::string_view> kinds) {
  for (const std::string_view kind : kinds) {
    const auto found = step.norms.find(std::string(kind));
    if (found != step.norms.end()) return found->second;
  }
  return std::nullopt;
}

constexpr std::array kGradients = {kind::kGradReduced, kind::kGradUnreduced};
constexpr std::array kWeights = {kind::kParamUpdated, kind::kParamOrigin};

class TailPrinter {
 public:
  TailPrinter(const TailArguments& arguments, Context& context)
      : arguments_(arguments), context_(context), lines_(context) {}

  void rows(std::vector<TailRow> rows) {
    for (const TailRow& one : rows) {
      if (context_.json) {
        print_json_line(json_row(one.row, one.series));
        continue;
      }
      const RowState& state = one.row.state;
      const bool is_ready = (one.row.flags & flag::kNotReady) == 0;
      const auto value = [&](Stat stat) {
        if (!is_ready || !is_told(stat, state)) return std::string("?");
        return (state.is_estimate() ? "~" : "") + short_number(derive(stat, state));
      };
      lines_.columns({{"step"},
                      {"rank"},
                      {"kind", TextTable::Align::left},
                      {"tensor", TextTable::Align::left, true},
                      {"norm"},
                      {"min"},
                      {"max"},
                      {"nans"}});
      lines_.print({std::to_string(one.row.step), std::to_string(one.row.rank),
                    printable(one.series.kind), tensor_text(one.series), value(Stat::norm),
                    value(Stat::min), value(Stat::max), value(Stat::nans)},
                   is_bad(one.row));
    }
  }

  // Of one step, from several ranks: the worst first.
  void step(std::vector<TailStep> ranks) {
    std::vector<double> norms;
    for (const TailStep& rank : ranks) {
      const double norm = norm_of(rank, kGradients).value_or(rank.worst_norm);
      if (std::isfinite(norm)) norms.push_back(norm);
    }
    std::sort(norms.begin(), norms.end());
    const double middle = norms.empty() ? 0.0 : norms[norms.size() / 2];
    const auto badness = [&](const TailStep& rank) {
      const double norm = norm_of(rank, kGradients).value_or(rank.worst_norm);
      return std::tuple(rank.non_finite, rank.alert_count(), rank.rows_lost,
                        std::isfinite(norm) ? std::abs(norm - middle) : 0.0);
    };
    std::stable_sort(ranks.begin(), ranks.end(),
                     [&](const TailStep& a, const TailStep& b) { return badness(a) > badness(b); });
    const std::size_t most =
        context_.json || arguments_.worst == 0 ? ranks.size() : arguments_.worst;
    const std::size_t count = std::min(most, ranks.size());
    choose_columns(ranks);
    for (std::size_t i = 0; i < count; ++i) {
      if (context_.json) {
        print_json_line(json_step(ranks[i]));
      } else {
        lines_.print(cells_of(ranks[i]), ranks[i].non_finite > 0);
      }
    }
    if (count < ranks.size()) {
      std::cout << "  ... and " << ranks.size() - count << " more ranks";
      if (!norms.empty()) {
        std::cout << "; norms of all from " << short_number(norms.front()) << " to "
                  << short_number(norms.back());
      }
      std::cout << "\n";
    }
  }

  // Of a step that was told before.
  void alerts(const std::vector<ReadAlert>& alerts) {
    for (const ReadAlert& one : alerts) {
      const Alert& alert = one.alert;
      if (context_.json) {
        print_json_line({{"restart", one.restart},
                         {"rank", one.rank},
                         {"step", alert.step},
                         {"rule", alert.rule},
                         {"message", alert.message}});
        continue;
      }
      const std::string where = "step " + std::to_string(alert.step) + ", rank " +
                                std::to_string(one.rank) + ": " + printable(alert.rule);
      std::cout << red(context_, where + ": " + printable(alert.message)) << "\n";
    }
  }

  void damage(const std::vector<Damage>& damage) {
    for (const Damage& one : damage) {
      context_.exit_code = kPartial;
      say_not_used(one);
    }
  }

 private:
  void choose_columns(const std::vector<TailStep>& ranks) {
    for (const TailStep& rank : ranks) {
      has_restart_ |= rank.restart != 0;
      has_optimizer_ |= rank.outcome.optimizer != 0;
      has_gradient_ |= norm_of(rank, kGradients).has_value();
      has_weight_ |= norm_of(rank, kWeights).has_value();
    }
    std::vector<TextTable::Column> columns;
    if (has_restart_) columns.push_back({"restart"});
    if (has_optimizer_) columns.push_back({"optimizer"});
    columns.push_back({"step"});
    columns.push_back({"rank"});
    if (has_gradient_) columns.push_back({"grad norm"});
    if (has_weight_) columns.push_back({"weight norm"});
    columns.push_back({"bad"});
    columns.push_back({"worst tensor", TextTable::Align::left, true});
    columns.push_back({"its norm"});
    columns.push_back({"logged", TextTable::Align::left});
    lines_.columns(std::move(columns));
  }

  std::vector<std::string> cells_of(const TailStep& step) const {
    std::vector<std::string> cells;
    const auto norm = [](const std::optional<double>& value) {
      return value ? short_number(*value) : std::string("-");
    };
    if (has_restart_) cells.push_back(std::to_string(step.restart));
    if (has_optimizer_) cells.push_back(std::to_string(step.outcome.optimizer));
    cells.push_back(std::to_string(step.outcome.step));
    cells.push_back(std::to_string(step.rank));
    if (has_gradient_) cells.push_back(norm(norm_of(step, kGradients)));
    if (has_weight_) cells.push_back(norm(norm_of(step, kWeights)));
    cells.push_back(grouped(step.non_finite));
    cells.push_back(step.norms.empty() ? "-" : tensor_text(step.worst));
    cells.push_back(step.norms.empty() ? "-" : short_number(step.worst_norm));
    std::string notes;
    const auto add = [&](const std::string& note) { notes += (notes.empty() ? "" : " ") + note; };
    if (!step.is_closed) {
      add("(not ended)");
    } else if (step.outcome.fate != Fate::taken) {
      add("(" + std::string(fate_name(step.outcome.fate)) + ")");
    }
    if (step.outcome.attempt > 0) add("(attempt " + std::to_string(step.outcome.attempt) + ")");
    for (const auto& [rule, count] : step.alerts) {
      add("(" + std::string(detect::is_check(rule) ? "check " : "") + printable(rule) +
          (count == 1 ? ")" : " x " + grouped(count) + ")"));
    }
    if (step.rows_lost > 0) add("(" + grouped(step.rows_lost) + " rows lost)");
    for (const auto& [name, value] : step.scalars) {
      add(printable(name) + "=" + short_number(value));
    }
    cells.push_back(notes);
    return cells;
  }

  const TailArguments& arguments_;
  Context& context_;
  TextLines lines_;
  bool has_restart_ = false;
  bool has_optimizer_ = false;
  bool has_gradient_ = false;
  bool has_weight_ = false;
};

// Collects the ranks of a step; what is there is printed when all have come or have had two looks'
// time.
class Steps {
 public:
  void add(std::vector<TailStep> steps) {
    for (TailStep& step : steps) {
      const Key key(step.restart, step.outcome.step, step.outcome.attempt, step.outcome.optimizer);
      waiting_[key].steps.push_back(std::move(step));
    }
  }
  void keep_last(std::size_t count) {
    while (waiting_.size() > count) waiting_.erase(waiting_.begin());
  }
  void print(TailPrinter& printer, std::size_t ranks, bool is_end) {
    for (auto entry = waiting_.begin(); entry != waiting_.end();) {
      Waiting& waiting = entry->second;
      if (!is_end && waiting.steps.size() < ranks && ++waiting.looks < 3) {
        ++entry;
        continue;
      }
      printer.step(std::move(waiting.steps));
      entry = waiting_.erase(entry);
    }
  }

 private:
  using Key = std::tuple<int, std::int64_t, int, int>;  // restart, step, attempt, optimizer
  struct Waiting {
    std::vector<TailStep> steps;
    int looks = 0;
  };
  std::map<Key, Waiting> waiting_;
};

// Tells once that a run which is followed has ended: nothing comes until it starts again.
class EndTeller {
 public:
  EndTeller(const TailArguments& arguments, const Context& context)
      : arguments_(arguments), context_(context) {}
  void after(const TailNews& news) {
    if (!news.steps.empty() || !news.rows.empty()) {
      is_told_ = false;
      quiet_looks_ = 0;
      return;
    }
    // Later than the last step, which is told once the run has stood still for kTailPatience looks.
    if (++quiet_looks_ <= kTailPatience || is_told_ || context_.quiet) return;
    const std::optional<WriterState> end = ended(arguments_.run, arguments_.select);
    if (!end) return;
    is_told_ = true;
    std::cerr << (*end == WriterState::closed
                      ? "the run has ended"
                      : "the run has ended, not all of it in order (killed)")
              << "; waiting for a restart, Ctrl-C ends\n";
  }

 private:
  const TailArguments& arguments_;
  const Context& context_;
  bool is_told_ = false;
  int quiet_looks_ = 0;
};

void run_tail(const TailArguments& arguments, Context& context) {
  if (arguments.follow && !wait_for_start(arguments.run, arguments.interval, context)) return;
  RunTail tail(arguments.run, arguments.select, arguments.rows, arguments.count);
  TailPrinter printer(arguments, context);
  Steps steps;
  std::int64_t rows_late = 0;
  TailNews news = tail.look();
  if (!arguments.follow) {
    TailNews rest = tail.unfinished();
    std::move(rest.steps.begin(), rest.steps.end(), std::back_inserter(news.steps));
  }
  // Row by row the ranks come one after the other: in the order of the steps they are read better.
  std::stable_sort(news.rows.begin(), news.rows.end(), [](const TailRow& a, const TailRow& b) {
    return std::tie(a.row.restart, a.row.step) < std::tie(b.row.restart, b.row.step);
  });
  if (news.rows.size() > arguments.count) {
    news.rows.erase(news.rows.begin(),
                    news.rows.end() - static_cast<std::ptrdiff_t>(arguments.count));
  }
  say_earlier(news.expired);
  say_earlier(news.earlier);
  say_incomplete(news.incomplete, context);
  const bool is_empty = news.steps.empty() && news.rows.empty();
  steps.add(std::move(news.steps));
  steps.keep_last(arguments.count);
  printer.damage(news.damage);
  printer.rows(std::move(news.rows));
  steps.print(printer, tail.ranks(), true);
  std::cout.flush();
  if (is_empty && !arguments.follow && arguments.count > 0) {  // the whole run says why
    const RunRows run = read_run(arguments.run, arguments.select);
    say_of_run(run, 0, arguments.select, context);
    if (run.kinds.empty() && run.damage.empty() && run.incomplete.empty()) {
      std::cerr << "trainmon: nothing has been recorded yet\n";
    }
  }
  if (!context.quiet && arguments.follow) {
    std::cerr << "following " << grouped(static_cast<std::int64_t>(tail.ranks()))
              << (tail.ranks() == 1 ? " rank" : " ranks") << "; Ctrl-C ends\n";
  }
  EndTeller end(arguments, context);
  while (arguments.follow && std::cout && wait_to_look(arguments.interval)) {
    news = tail.look();
    end.after(news);
    printer.damage(news.damage);
    printer.rows(std::move(news.rows));
    rows_late += news.rows_late;
    steps.add(std::move(news.steps));
    steps.print(printer, tail.ranks(), false);
    printer.alerts(news.alerts);
    std::cout.flush();
  }
  if (arguments.follow) {
    steps.add(tail.unfinished().steps);
    steps.print(printer, tail.ranks(), true);
  }
  if (rows_late > 0) {
    std::cerr << "trainmon: " << grouped(rows_late)
              << " rows came after their step was told; `trainmon show` has them\n";
  }
}

}  // namespace

void add_tail(CLI::App& app, Context& context) {
  CLI::App* command = app.add_subcommand("tail", "the newest steps; -f follows a run");
  const auto given = std::make_shared<TailArguments>();
  command->add_option("RUN", given->run, "run directory (`out` of trainmon.watch)")->required();
  command->add_flag("-f,--follow", given->follow, "go on with what is written, until Ctrl-C");
  command->add_option("-n,--count", given->count, "steps (or rows) to begin with")
      ->capture_default_str()
      ->check(CLI::Range(0, 1000000));
  command->add_flag("--rows", given->rows, "rows of tensors instead of steps");
  command->add_option("--worst", given->worst, "ranks shown of one step, the worst first; 0: all")
      ->capture_default_str();
  command->add_option("--interval", given->interval, "seconds between two looks")
      ->capture_default_str()
      ->check(CLI::Range(0.01, 3600.0));
  const auto repeatable = [](CLI::Option* option) { option->allow_extra_args(false); };
  ReadOptions& select = given->select;
  repeatable(
      command->add_option("--kind,--kinds", select.kinds, "kind or group of kinds (repeatable)"));
  repeatable(command->add_option("--name,--include", select.include, "name pattern (repeatable)"));
  repeatable(command->add_option("--exclude", select.exclude, "names left out (repeatable)"));
  repeatable(command->add_option("--rank,--ranks", select.ranks, "rank (repeatable)"));
  command->footer(
      R"(One line per step and rank has norms over all tensors of the rank, and how many
elements are not finite (bad). It names the first tensor that is not, else the
one of the largest norm, and has what mon.log was given. A step is shown when it
has ended. -f waits for the first start where there is none yet. Restarts and
ranks that appear later are followed, too: it says that a run has ended and
waits for a restart. Exit code 0 after Ctrl-C, 3 when something is missing or
there was no start. An alert has a line of its own where its step was shown
before, as those of step checks have. With --json one object per line.

Examples:
  trainmon tail runs/a
  trainmon tail runs/a -f
  trainmon tail runs/a -f --rank 0 --kind grads
  trainmon tail runs/a -f --rows --name layers.3
  trainmon tail runs/a -f --json | jq .norms)");
  command->callback([given, &context] { run_tail(*given, context); });
}

}  // namespace trainmon::cli
