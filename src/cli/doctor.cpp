// trainmon doctor: this machine, or whether the books of a run are in order.
#include <iostream>
#include <memory>
#include <set>

#include "base/text.h"
#include "cli/machine.h"
#include "cli/output.h"
#include "cli/select.h"
#include "read/account.h"

namespace trainmon::cli {
namespace {

// What a person should know of one rank, in sentences; empty when there is nothing.
std::vector<std::string> findings_of(const RankAccount& rank) {
  std::vector<std::string> findings = rank.faults;
  bool writes_failed = false;
  for (const SinkHealth& sink : rank.health.sinks) {
    for (const auto& [reason, rows] : sink.rows_dropped) {
      if (rows > 0) {
        findings.push_back("sink " + sink.name + ": " + grouped(rows) + " rows dropped (" + reason +
                           ")");
      }
    }
    if (sink.degraded) findings.push_back("sink " + sink.name + ": its last write failed");
    writes_failed = writes_failed || sink.degraded || rows_dropped(sink) > 0;
  }
  for (const auto& [reason, values] : rank.health.scalars_dropped) {
    findings.push_back(grouped(values) + " logged values dropped (" + reason + ")");
  }
  for (const auto& [part, why] : rank.health.parts_off) {
    findings.push_back(part + " switched itself off: " + why);
  }
  if (rank.health.errors > 0) {
    findings.push_back(grouped(rank.health.errors) + " errors inside trainmon" +
                       (writes_failed ? ", failed writes among them" : ""));
  }
  return findings;
}

std::string percent(double share) {
  return number_text(100.0 * share, 3) + "%";
}

// Empty without a budget.
std::string budget_text(const RankAccount& rank) {
  if (!rank.budget) return "";
  const RankBudget& budget = *rank.budget;
  std::string text = percent(budget.budget) + ": ";
  if (!budget.share) return text + "too few steps to keep to it";
  text += "measured share " + percent(*budget.share) + ", ";
  const bool is_every = budget.part == budget.of && budget.every == 1;
  text +=
      is_every
          ? "every step"
          : std::to_string(budget.part) + " of " +
                number_text(static_cast<double>(budget.of) * static_cast<double>(budget.every)) +
                " steps";
  text += " recorded since step " + std::to_string(budget.since_step);
  if (budget.out_of_reach) text += "; recording less would not keep to it";
  return text;
}

Json budget_json(const RankAccount& rank) {
  if (!rank.budget) return {};
  const RankBudget& budget = *rank.budget;
  return {{"budget", budget.budget},
          {"share", budget.share ? Json(*budget.share) : Json()},
          {"part", budget.part},
          {"of", budget.of},
          {"every", budget.every},
          {"since_step", budget.since_step},
          {"out_of_reach", budget.out_of_reach}};
}

std::string state_of(const RankAccount& rank) {
  if (!rank.has_health) return "no health.json";
  switch (rank.writer) {
    case WriterState::closed:
      return "closed";
    case WriterState::running:
      return "running";
    case WriterState::gone:
      return "killed";
    case WriterState::unknown:
      break;
  }
  return "open";
}

Json rank_json(const RankAccount& rank) {
  Json out;
  out["rank"] = rank.rank;
  out["restart"] = rank.restart;
  out["directory"] = rank.directory.string();
  out["run_id"] = rank.run_id;
  out["host"] = rank.host;
  out["started"] = rank.started;
  out["has_health"] = rank.has_health;
  out["closed"] = rank.closed;
  out["rows_produced"] = rank.health.rows_produced;
  out["rows_pending"] = rank.health.rows_pending;
  out["sinks"] = Json::array();
  for (const SinkHealth& sink : rank.health.sinks) {
    out["sinks"].push_back({{"name", sink.name},
                            {"rows_written", sink.rows_written},
                            {"rows_dropped", sink.rows_dropped},
                            {"degraded", sink.degraded}});
  }
  out["refused"] = rank.health.refused;
  out["scalars_dropped"] = rank.health.scalars_dropped;
  out["parts_off"] = rank.health.parts_off;
  out["errors"] = rank.health.errors;
  out["alerts"] = rank.health.alerts;
  out["queue_bytes"] = rank.health.queue_bytes;
  out["queue_bytes_peak"] = rank.health.queue_bytes_peak;
  out["queue_seconds"] = rank.health.queue_seconds;
  out["log_rows"] = rank.log_rows;
  out["log_files"] = rank.log_files;
  out["log_bytes"] = rank.log_bytes;
  out["torn_tails"] = rank.torn_tails;
  out["covered"] = rank.covered;
  out["not_covered"] = rank.not_covered;
  out["budget"] = budget_json(rank);
  out["state"] = state_of(rank);
  out["last_step"] = rank.last_step ? Json(*rank.last_step) : Json();
  out["last_time_ns"] = rank.last_time_ns;
  out["incomplete"] = rank.incomplete;
  out["findings"] = findings_of(rank);
  return out;
}

void print_ranks(const Account& account, const Context& context) {
  TextTable table({{"rank"},
                   {"restart"},
                   {"state", TextTable::Align::left},
                   {"produced"},
                   {"written"},
                   {"dropped"},
                   {"in log"},
                   {"alerts"},
                   {"torn"}});
  constexpr std::size_t kShown = 32;
  std::size_t left_out = 0;
  for (std::size_t i = 0; i < account.ranks.size(); ++i) {
    const RankAccount& rank = account.ranks[i];
    const bool is_bad = !findings_of(rank).empty();
    if (i >= kShown && !is_bad) {
      ++left_out;
      continue;
    }
    std::int64_t written = 0, lost = 0;
    for (const SinkHealth& sink : rank.health.sinks) {
      written = std::max(written, sink.rows_written);
      lost = std::max(lost, rows_dropped(sink));
    }
    const auto claimed = [&](std::int64_t count) {
      return rank.has_health ? grouped(count) : std::string("?");
    };
    table.add(
        {std::to_string(rank.rank), std::to_string(rank.restart), state_of(rank),
         claimed(rank.health.rows_produced), claimed(written), claimed(lost),
         grouped(rank.log_rows), claimed(rank.health.alerts), std::to_string(rank.torn_tails)},
        is_bad);
  }
  table.print(context);
  if (left_out > 0) std::cout << "... and " << left_out << " more, all in order\n";
}

// Sentences that many ranks share are printed once.
void print_shared(const std::string& title,
                  const std::map<std::string, std::vector<int>>& entries) {
  if (entries.empty()) return;
  std::cout << "\n" << title << "\n";
  for (const auto& [text, ranks] : entries) {
    std::cout << "  " << printable(text);
    const std::set<int> all(ranks.begin(), ranks.end());  // each start has said it
    if (all.size() == 1) std::cout << " (rank " << *all.begin() << ")";
    if (all.size() > 1) std::cout << " (" << all.size() << " ranks)";
    std::cout << "\n";
  }
}

void print_account(const Account& account, const std::string& run, const Context& context) {
  std::int64_t files = 0, bytes = 0, running = 0, broken_off = 0, told = 0;
  std::map<std::string, std::vector<int>> findings, not_covered, refused, budgets;
  std::vector<std::string> incomplete;
  if (!account.missing.ranks.empty()) findings[missing_text(account.missing)];
  for (const RankAccount& rank : account.ranks) {
    files += rank.log_files;
    bytes += rank.log_bytes;
    const bool is_running = rank.writer == WriterState::running;
    running += is_running ? 1 : 0;
    const bool is_told = !rank.is_newest && rank.writer == WriterState::gone;  // account.killed
    told += is_told ? 1 : 0;
    broken_off += is_running || rank.closed || is_told ? 0 : 1;
    incomplete.insert(incomplete.end(), rank.incomplete.begin(), rank.incomplete.end());
    for (const std::string& finding : findings_of(rank)) findings[finding].push_back(rank.rank);
    if (std::string budget = budget_text(rank); !budget.empty()) {
      budgets[std::move(budget)].push_back(rank.rank);
    }
    for (const auto& [what, why] : rank.not_covered) {
      not_covered[what + ": " + why].push_back(rank.rank);
    }
    for (const auto& [reason, count] : rank.health.refused) {
      refused[reason + ": " + grouped(count) + " tensors"].push_back(rank.rank);
    }
  }
  const RankAccount& first = account.ranks.front();
  std::cout << bold(context, printable(run));
  if (!first.run_id.empty()) std::cout << "  run id " << printable(first.run_id);
  std::cout << "  started " << printable(first.started) << "\n";
  std::cout << grouped(account.rows()) << " rows in " << grouped(files)
            << (files == 1 ? " log file, " : " log files, ")
            << bytes_text(static_cast<double>(bytes));
  if (account.rows() > 0) {
    std::cout << " ("
              << number_text(static_cast<double>(bytes) / static_cast<double>(account.rows()), 3)
              << " bytes a row)";
  }
  std::cout << "\n\n";
  print_ranks(account, context);
  print_shared("budget of the step's time", budgets);
  print_shared("not covered", not_covered);
  print_shared("not measured", refused);
  print_shared("findings", findings);
  if (!incomplete.empty()) std::cout << "\nincomplete\n";
  for (const std::string& sentence : incomplete) std::cout << "  " << printable(sentence) << "\n";
  if (!account.earlier.empty()) std::cout << "\nearlier restarts\n";
  for (const std::string& sentence : account.earlier) {
    std::cout << "  " << printable(sentence) << "\n";
  }
  if (!account.skipped.empty()) std::cout << "\nskipped\n";
  for (const std::string& sentence : account.skipped) std::cout << "  " << sentence << "\n";
  for (const std::string& sentence : account.killed) std::cout << "\n" << sentence << "\n";
  for (const std::string& sentence : account.expired) std::cout << "\n" << sentence << "\n";
  if (!account.damage.empty()) std::cout << "\ndamage\n";
  for (const Damage& damage : account.damage) {
    std::cout << "  " << printable(damage.file.native()) << " at byte " << damage.offset << ": "
              << printable(damage.what) << "\n";
  }
  const std::string of_all = " of " + std::to_string(account.ranks.size());
  if (running > 0) std::cout << "\n" << running << of_all << " still running\n";
  if (broken_off > 0) {
    std::cout
        << "\n"
        << broken_off + told << of_all
        << " did not stop in order: killed, or (state \"open\") it cannot be told from here\n";
  }
  if (findings.empty() && account.damage.empty() && incomplete.empty()) {
    std::cout << "\nin order: every row "
              << (running + broken_off > 0 ? "reported so far" : "produced")
              << " is accounted for\n";
  }
}

void inspect_run(const std::string& run, unsigned threads, Context& context) {
  const Account found = account(run, threads);
  bool has_findings = false;
  bool is_whole = found.damage.empty() && found.missing.ranks.empty();
  for (const RankAccount& rank : found.ranks) {
    has_findings |= !findings_of(rank).empty();
    is_whole &= rank.incomplete.empty();
  }
  context.exit_code = !is_whole ? kPartial : has_findings ? kFindings : kOk;
  if (!context.json) return print_account(found, run, context);
  Json out;
  out["rows"] = found.rows();
  out["world_size"] = found.missing.world_size;
  out["missing_ranks"] = found.missing.ranks;
  out["earlier"] = found.earlier;
  out["skipped"] = found.skipped;
  out["killed"] = found.killed;
  out["expired"] = found.expired;
  out["ranks"] = Json::array();
  for (const RankAccount& rank : found.ranks) out["ranks"].push_back(rank_json(rank));
  out["damage"] = Json::array();
  for (const Damage& damage : found.damage) {
    out["damage"].push_back(
        {{"file", damage.file.string()}, {"offset", damage.offset}, {"what", damage.what}});
  }
  print_json(out);
}

}  // namespace

void add_doctor(CLI::App& app, Context& context) {
  CLI::App* command = app.add_subcommand("doctor", "is this machine fit, or a record complete?");
  struct DoctorArguments {
    std::string run;
    std::string config;
    unsigned threads = 0;
  };
  const auto given = std::make_shared<DoctorArguments>();
  CLI::Option* run =
      command->add_option("RUN", given->run, "run directory; without it, this machine");
  command->add_option("--config", given->config, "config file to check with the machine")
      ->type_name("FILE")
      ->excludes(run);
  add_threads(*command, given->threads);
  command->footer(
      R"(Without RUN it prints versions and the instruction set. It also tests whether a
run can be written in the working directory: space, speed of writing 16 MiB,
file system, limits. With RUN it checks that rows produced = written + dropped
for every rank, sink and reason, and compares them with the log. It names what
was not covered, missing ranks and damaged files. A run is "in order" when all
of its rows are accounted for. A torn last write is no damage: a killed or live
run did not finish it.

Exit code 3: the record is incomplete (nothing recorded, rows dropped, a rank
killed). 1: something else is wrong. A killed start that a newer one followed is
named, and the exit code does not change for it.

Examples:
  trainmon doctor
  trainmon doctor --config monitor.json
  trainmon doctor runs/a
  trainmon doctor runs/a --json)");
  command->callback([given, run, &context] {
    if (run->count() == 0) return inspect_machine(given->config, context);
    inspect_run(given->run, given->threads, context);
  });
}

}  // namespace trainmon::cli
