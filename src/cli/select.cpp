// Wrong values are named with what would be valid.
#include "cli/select.h"

#include <charconv>
#include <iostream>
#include <stdexcept>

#include "base/text.h"
#include "read/merge_rows.h"
#include "read/row_filter.h"

namespace trainmon::cli {
namespace {

std::optional<std::int64_t> step_in(std::string_view text, const std::string& whole) {
  if (text.empty()) return std::nullopt;
  std::int64_t step = 0;
  const auto result = std::from_chars(text.data(), text.data() + text.size(), step);
  if (result.ec != std::errc() || result.ptr != text.data() + text.size()) {
    throw std::invalid_argument("--steps: '" + printable(whole) +
                                "' is not A:B, A:, :B or A with whole numbers");
  }
  return step;
}

void set_steps(const std::string& steps, ReadOptions& options) {
  if (steps.empty()) return;
  const std::size_t colon = steps.find(':');
  options.first_step = step_in(std::string_view(steps).substr(0, colon), steps);
  options.last_step = colon == std::string::npos
                          ? options.first_step
                          : step_in(std::string_view(steps).substr(colon + 1), steps);
  if (options.first_step && options.last_step && *options.last_step < *options.first_step) {
    throw std::invalid_argument("--steps: " + steps + " ends before it begins");
  }
}

void say_suggested(const RunRows& rows) {
  for (const std::string& pattern : rows.suggested) {
    std::cerr << "trainmon: --name " << printable(pattern.substr(3))
              << " takes no name: patterns begin at the root of the model; did you mean --name '"
              << printable(pattern) << "'?\n";
  }
}

}  // namespace

void add_selection(CLI::App& command, Selection& selection) {
  command.add_option("RUN", selection.run, "run directory (`out` of trainmon.watch)")->required();
  const auto repeatable = [](CLI::Option* option) { option->allow_extra_args(false); };
  repeatable(
      command.add_option("--kind,--kinds", selection.kinds, "kind or group of kinds (repeatable)"));
  repeatable(command.add_option("--name,--include", selection.names, "name pattern (repeatable)"));
  repeatable(command.add_option("--exclude", selection.excludes, "names left out (repeatable)"));
  repeatable(command.add_option("--rank,--ranks", selection.ranks, "rank (repeatable)"));
  command.add_option("--steps", selection.steps, "A:B (inclusive), A:, :B or A");
  command.add_flag("--all-restarts", selection.all_restarts, "also rows that a restart replaced");
  command.add_flag("--merged", selection.merged, "merge shards over ranks (then rank is *)");
  add_threads(command, selection.threads);
}

void add_threads(CLI::App& command, unsigned& threads) {
  command.add_option("--threads", threads, "threads that read; default: processors, at most 8")
      ->check(CLI::Range(1, 128));
}

void say_partial(std::int64_t count) {
  if (count == 0) return;
  std::cerr << "trainmon: " << grouped(count)
            << (count == 1 ? " merged row is partial" : " merged rows are partial")
            << ": not all of the tensor was there\n";
}

void say_not_used(const Damage& damage) {
  std::cerr << "trainmon: not used: " << printable(damage.file.native()) << " at byte "
            << damage.offset << ": " << printable(damage.what) << "\n";
}

void say_earlier(const std::vector<std::string>& sentences) {
  for (const std::string& sentence : sentences) {
    std::cerr << "trainmon: " << printable(sentence) << "\n";
  }
}

void say_incomplete(const std::vector<std::string>& sentences, Context& context) {
  constexpr std::size_t kShown = 5;
  for (std::size_t i = 0; i < sentences.size() && i < kShown; ++i) {
    std::cerr << "trainmon: incomplete: " << printable(sentences[i]) << "\n";
  }
  if (sentences.size() > kShown) {
    std::cerr << "trainmon: and " << sentences.size() - kShown
              << " more; `trainmon doctor RUN` lists all\n";
  }
  if (!sentences.empty()) context.exit_code = kPartial;
}

ReadOptions read_options(const Selection& selection) {
  ReadOptions options;
  options.kinds = selection.kinds;
  options.include = selection.names;
  options.exclude = selection.excludes;
  options.ranks = selection.ranks;
  options.all_restarts = selection.all_restarts;
  options.merged = selection.merged;
  options.threads = selection.threads;
  set_steps(selection.steps, options);
  return options;
}

RunRows read_selected(const Selection& selection, Context& context) {
  const ReadOptions options = read_options(selection);
  RunRows rows = read_run(selection.run, options);
  say_of_run(rows, static_cast<std::int64_t>(rows.rows.size()), options, context);
  if (options.merged) say_partial(partial_rows(rows));
  return rows;
}

void say_of_run(const RunRows& rows, std::int64_t count, const ReadOptions& options,
                Context& context) {
  if (const std::string text = no_match_text(rows, count, options); !text.empty()) {
    std::cerr << "trainmon: " << text << "; `trainmon show RUN` lists names and steps\n";
    context.exit_code = kPartial;
  }
  say_suggested(rows);
  say_earlier(rows.expired);
  // `first-bad` answers with all of them.
  if (!rows.all_restarts) say_earlier(rows.earlier);
  if (!rows.missing.ranks.empty()) {
    context.exit_code = kPartial;
    std::cerr << "trainmon: " << missing_text(rows.missing) << ": this answer lacks what "
              << (rows.missing.ranks.size() == 1 ? "it" : "they") << " saw\n";
  }
  say_incomplete(rows.incomplete, context);
  if (rows.damage.empty()) return;
  context.exit_code = kPartial;
  constexpr std::size_t kShown = 5;
  for (std::size_t i = 0; i < rows.damage.size() && i < kShown; ++i) {
    say_not_used(rows.damage[i]);
  }
  if (rows.damage.size() > kShown) {
    std::cerr << "trainmon: and " << rows.damage.size() - kShown
              << " more; `trainmon doctor RUN` lists all\n";
  }
}

Stat checked_stat(const std::string& name) {
  if (const std::optional<Stat> stat = stat_from_name(name)) return *stat;
  std::vector<std::string_view> known;
  std::string list;
  for (const StatDefinition& definition : stat_table()) {
    known.push_back(definition.name);
    list += " " + std::string(definition.name);
  }
  std::string text = "--stat: '" + printable(name) + "' is no statistic";
  if (const auto nearest = nearest_name(name, known)) text += " (did you mean '" + *nearest + "'?)";
  throw std::invalid_argument(text + "; there are" + list);
}

}  // namespace trainmon::cli
