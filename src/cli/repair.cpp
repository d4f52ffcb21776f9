// trainmon repair RUN: a copy of a damaged run that readers take without a complaint.
#include "read/repair.h"

#include <filesystem>
#include <iostream>
#include <memory>
#include <stdexcept>

#include "base/text.h"
#include "cli/output.h"
#include "cli/progress.h"
#include "cli/select.h"
#include "convert/staging.h"

namespace trainmon::cli {
namespace {

namespace fs = std::filesystem;

struct RepairArguments {
  std::string run;
  std::string out;
};

Json damage_list(const std::vector<Damage>& damage) {
  Json list = Json::array();
  for (const Damage& one : damage) {
    list.push_back({{"file", one.file.string()}, {"offset", one.offset}, {"what", one.what}});
  }
  return list;
}

const char* end_of(WriterState state) {
  return state == WriterState::closed ? "closed" : state == WriterState::gone ? "killed" : "open";
}

Json repaired_json(const RepairedRank& rank) {
  Json left = Json::array();
  for (const fs::path& path : rank.left) left.push_back(path.string());
  return {{"rank", rank.rank},
          {"restart", rank.restart},
          {"state", end_of(rank.was)},
          {"segments", rank.segments},
          {"batches", rank.batches},
          {"rows", rank.rows},
          {"rows_lost", rank.rows_lost ? Json(*rank.rows_lost) : Json()},
          {"unfinished_writes", rank.torn_tails},
          {"damage", damage_list(rank.damage)},
          {"not_copied", std::move(left)}};
}

void say_losses(const std::vector<Damage>& damage) {
  for (const Damage& one : damage) {
    std::cerr << "trainmon: lost: " << printable(one.file.native()) << " at byte " << one.offset
              << ": " << printable(one.what) << "\n";
  }
}

void print_repair(const Repair& done, const fs::path& to, const Context& context) {
  TextTable table({{"rank"},
                   {"restart"},
                   {"state", TextTable::Align::left},
                   {"damaged places"},
                   {"rows kept"},
                   {"rows lost"}});
  std::int64_t left = 0;
  for (const RepairedRank& rank : done.ranks) {
    left += std::ssize(rank.left);
    const std::string lost = rank.rows_lost ? grouped(*rank.rows_lost) : "unknown";
    table.add({std::to_string(rank.rank), std::to_string(rank.restart), end_of(rank.was),
               grouped(std::ssize(rank.damage)), grouped(rank.rows), lost},
              !rank.damage.empty());
  }
  table.print(context);
  if (context.quiet) return;
  if (left > 0) {
    std::cerr << "trainmon: " << grouped(left)
              << " files of other sinks are not copied: trainmon convert makes them of the log\n";
  }
  std::cerr << "the repaired run is " << printable(to.native()) << "\n";
}

void run_repair(const RepairArguments& given, Context& context) {
  fs::path run = fs::path(given.run).lexically_normal();
  if (!run.has_filename()) run = run.parent_path();
  const fs::path to(given.out.empty() ? run.native() + "-repaired" : given.out);
  std::error_code unknown;
  if (fs::symlink_status(to, unknown).type() != fs::file_type::not_found) {
    throw std::invalid_argument(to.string() + " exists already: -o names another folder");
  }
  const Interruptible interruptible;
  Repair done;
  try {
    Progress progress("repairing", context);
    Staging staging(to, true, false);
    done = repair(run, staging.path(), [&](std::int64_t bytes, std::int64_t total) {
      progress.show(bytes, total);
      return !Interruptible::asked();
    });
    staging.publish();
  } catch (const std::runtime_error&) {
    if (!Interruptible::asked()) throw;
    context.exit_code = kPartial;
    std::cerr << "trainmon: interrupted; nothing was written\n";
    return;
  }
  bool is_whole = done.unreadable.empty();
  say_losses(done.unreadable);
  for (const RepairedRank& rank : done.ranks) {
    say_losses(rank.damage);
    is_whole = is_whole && rank.damage.empty() && rank.rows_lost.value_or(0) == 0;
  }
  if (!is_whole) context.exit_code = kPartial;
  if (!context.json) return print_repair(done, to, context);
  Json out;
  out["output"] = to.native();
  out["ranks"] = Json::array();
  for (const RepairedRank& rank : done.ranks) out["ranks"].push_back(repaired_json(rank));
  out["unreadable"] = damage_list(done.unreadable);
  print_json(out);
}

}  // namespace

void add_repair(CLI::App& app, Context& context) {
  CLI::App* command = app.add_subcommand("repair", "a sound copy of a damaged run");
  const auto given = std::make_shared<RepairArguments>();
  command->add_option("RUN", given->run, "run directory")->required();
  command->add_option("-o,--output", given->out, "folder of the copy; without it RUN-repaired")
      ->type_name("DIR");
  command->footer(R"(Writes a copy with every usable record of a damaged run. All commands read the
same rows from the copy as from RUN, and find no damage. RUN itself does not
change. The command names by file and byte what was lost. repair.json beside
each log lists it, too, and readers say that a run was repaired. In the copy a
killed run counts as ended. Dropped rows and missing ranks stay missing. The
copy has the log and the flight recorders; trainmon convert makes tables of it.
A run that is still being written is refused.

Exit code 0: nothing was lost. 3: something was lost.

Examples:
  trainmon repair runs/a
  trainmon repair runs/a -o runs/a-sound
  trainmon repair runs/a --json)");
  command->callback([given, &context] { run_repair(*given, context); });
}

}  // namespace trainmon::cli
