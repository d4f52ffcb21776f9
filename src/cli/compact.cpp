// trainmon compact RUN: the log of a run in few large frames, for readers.
#include "read/compact.h"

#include <iostream>
#include <memory>

#include "base/text.h"
#include "cli/output.h"
#include "cli/progress.h"
#include "cli/select.h"

namespace trainmon::cli {
namespace {

Json json_rank(const CompactedRank& rank) {
  Json left = Json::array();
  for (const CompactedRank::Left& one : rank.left) {
    left.push_back({{"segment", one.segment.string()}, {"why", one.why}});
  }
  return {{"rank", rank.rank},
          {"restart", rank.restart},
          {"segments", rank.segments},
          {"already", rank.already},
          {"frames_before", rank.frames_before},
          {"frames_after", rank.frames_after},
          {"bytes_before", rank.bytes_before},
          {"bytes_after", rank.bytes_after},
          {"left", std::move(left)}};
}

void print_text(const Compaction& done, const Context& context) {
  TextTable table({{"rank"},
                   {"restart"},
                   {"segments"},
                   {"frames before"},
                   {"after"},
                   {"MB before"},
                   {"after"}});
  const auto megabytes = [](std::int64_t bytes) {
    return number_text(static_cast<double>(bytes) / 1e6, 3);
  };
  std::int64_t segments = 0;
  for (const CompactedRank& rank : done.ranks) {
    if (rank.segments == 0) continue;
    segments += rank.segments;
    table.add({std::to_string(rank.rank), std::to_string(rank.restart), grouped(rank.segments),
               grouped(rank.frames_before), grouped(rank.frames_after),
               megabytes(rank.bytes_before), megabytes(rank.bytes_after)});
  }
  if (segments > 0) return table.print(context);
  std::cout << "nothing to compact\n";
}

void run_compact(const std::string& run, Context& context) {
  const Interruptible interruptible;
  Progress progress("compacting", context);
  const Compaction done = compact(run, [&](std::int64_t bytes, std::int64_t total) {
    progress.show(bytes, total);
    return !Interruptible::asked();
  });
  for (const CompactedRank& rank : done.ranks) {
    for (const CompactedRank::Left& left : rank.left) {
      if (left.is_fault) context.exit_code = kPartial;
      if (!left.is_fault && context.quiet) continue;
      std::cerr << "trainmon: left as it is: " << printable(left.segment.native()) << ": "
                << printable(left.why) << "\n";
    }
  }
  for (const Damage& damage : done.damage) {
    context.exit_code = kPartial;
    std::cerr << "trainmon: " << printable(damage.file.native()) << ": " << printable(damage.what)
              << "\n";
  }
  if (Interruptible::asked()) {
    context.exit_code = kPartial;
    std::cerr << "trainmon: interrupted; segments are as they were or compacted\n";
  }
  if (!context.json) return print_text(done, context);
  Json out = Json::array();
  for (const CompactedRank& rank : done.ranks) out.push_back(json_rank(rank));
  print_json(out);
}

}  // namespace

void add_compact(CLI::App& app, Context& context) {
  CLI::App* command = app.add_subcommand("compact", "make the log of a run faster to read");
  const auto run = std::make_shared<std::string>();
  command->add_option("RUN", *run, "run directory")->required();
  command->footer(R"(Joins the small frames of a log into large ones. Not a value changes; every
reader gives the same answers, only sooner. Each segment is decoded again and
compared before its file is replaced. A segment that is damaged or still
written stays as it is. Versions before 0.2.0 cannot read a compacted log.
A byte that is damaged afterwards costs the records of a large frame.

Exit code 3 when a segment had to stay as it is for another reason than that
its run goes on.

Examples:
  trainmon compact runs/a
  trainmon compact runs/a --json)");
  command->callback([run, &context] { run_compact(*run, context); });
}

}  // namespace trainmon::cli
