// The verdict in the words of `trainmon diagnose`, and beside it what was not seen.
#include "report/first_screen.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>

#include "answers/setting_changes.h"
#include "base/text.h"
#include "read/row_filter.h"
#include "read/run_layout.h"
#include "report/whole_run.h"
#include "trainmon/version.h"

namespace trainmon::page {
namespace {

using Json = nlohmann::ordered_json;

Json first_names(const Diagnosis& diagnosis, const detect::Finding& one) {
  constexpr std::size_t kMost = 3;
  Json names = Json::array();
  for (const std::uint32_t tensor : one.tensors) {
    if (names.size() < kMost) names.push_back(detect::tensor_text(diagnosis.tensors[tensor]));
  }
  return names;
}

std::string element_of(const Diagnosis& diagnosis, const detect::Finding& one) {
  return one.tensors.size() == 1 ? diagnosis.tensors[one.tensors.front()].element : "";
}

Json words_of(const Diagnosis& diagnosis) {
  Json words = Json::array();
  const std::vector<std::size_t> firsts = first_alike(diagnosis);
  for (const detect::Finding& one : diagnosis.findings) {
    words.push_back({{"place", place_text(diagnosis, one)},
                     {"tensors", detect::tensors_text(diagnosis.tensors, one)},
                     {"names", first_names(diagnosis, one)},
                     {"element", element_of(diagnosis, one)},
                     {"text", printable(one.text)},
                     {"bound", bound_text(one)},
                     {"check", check_text(one)},
                     {"first_alike", firsts[words.size()]}});
  }
  return words;
}

Json damage_json(const std::vector<Damage>& damage) {
  Json list = Json::array();
  for (const Damage& one : damage) {
    list.push_back({{"file", one.file.string()}, {"offset", one.offset}, {"what", one.what}});
  }
  return list;
}

// Sentences that many ranks share, once: [sentence, [rank, ...]].
Json shared(const std::map<std::string, std::vector<int>>& sentences) {
  Json list = Json::array();
  for (const auto& [sentence, ranks] : sentences) list.push_back({sentence, ranks});
  return list;
}

// Ranks that recorded fewer steps of a kind than another, or fewer rows of as many tensors.
Json fewer_json(const KindFacts& facts, const std::vector<int>& ranks) {
  std::map<std::int64_t, std::int64_t> most;  // rows, by tensors
  for (const auto& [rank, one] : facts.ranks) {
    most[one.tensors] = std::max(most[one.tensors], one.rows);
  }
  std::map<std::array<std::int64_t, 3>, std::vector<int>> alike;
  for (const int rank : ranks) {
    const auto found = facts.ranks.find(rank);
    const RankFacts one = found == facts.ranks.end() ? RankFacts{} : found->second;
    if (one.steps < facts.steps) {
      alike[{one.steps, 0, 0}].push_back(rank);
    } else if (one.rows < most[one.tensors]) {
      alike[{one.steps, one.rows, most[one.tensors]}].push_back(rank);
    }
  }
  Json list = Json::array();
  for (const auto& [numbers, some] : alike) {
    const auto& [steps, rows, of_rows] = numbers;
    list.push_back({{"ranks", some}, {"steps", steps}, {"rows", rows}, {"of_rows", of_rows}});
  }
  return list;
}

// The first and the last step that anything was recorded of; null where nothing was.
Json span_json(const Gathered& gathered, int run) {
  std::optional<Span> all;
  const auto take = [&](std::int64_t first, std::int64_t last) {
    if (!all) all = Span{first, last};
    all = Span{std::min(all->first, first), std::max(all->last, last)};
  };
  for (const auto& [kind, facts] : gathered.runs[static_cast<std::size_t>(run)].kinds) {
    take(facts.first_step, facts.last_step);
  }
  const CellTable& curves = gathered.curves;
  for (const Line& line : curves.lines()) {
    const std::vector<Cell>& cells = curves.cells_of(line).cells;
    if (line.run != run || cells.empty()) continue;
    const auto& columns = curves.columns(curves.tensors()[line.tensor].kind);
    take(columns.at(cells.front().bin).first, columns.at(cells.back().bin).last);
  }
  return all ? Json{all->first, all->last} : Json();
}

// The largest share of the step's time that a rank measured of itself, in its newest restart; null
// where none did.
Json own_cost_json(const Account& books) {
  Json most;
  for (const RankAccount& one : books.ranks) {
    if (!one.is_newest || !one.budget || !one.budget->share) continue;
    if (!most.is_null() && most["share"] >= *one.budget->share) continue;
    most = {{"rank", one.rank}, {"share", *one.budget->share}, {"budget", one.budget->budget}};
  }
  return most;
}

Json record_json(const Account& books, const Diagnosis& diagnosis, const Gathered& all, int run,
                 const ReadOptions& select) {
  const GatheredRun& gathered = all.runs[static_cast<std::size_t>(run)];
  std::map<std::string, std::vector<int>> dropped, not_covered, refused;
  std::int64_t running = 0;
  for (const RankAccount& rank : books.ranks) {
    running += rank.writer == WriterState::running ? 1 : 0;
    for (const SinkHealth& sink : rank.health.sinks) {
      for (const auto& [reason, rows] : sink.rows_dropped) {
        if (rows > 0)
          dropped[grouped(rows) + (rows == 1 ? " row (" : " rows (") + reason + ")"].push_back(
              rank.rank);
      }
    }
    for (const auto& [reason, values] : rank.health.scalars_dropped) {
      dropped[grouped(values) + " logged values (" + reason + ")"].push_back(rank.rank);
    }
    for (const auto& [what, why] : rank.not_covered) {
      not_covered[what + ": " + why].push_back(rank.rank);
    }
    for (const auto& [reason, count] : rank.health.refused) {
      refused[reason + ": " + grouped(count)].push_back(rank.rank);
    }
  }
  Json out;
  out["missing"] = missing_text(books.missing);
  out["missing_ranks"] = books.missing.ranks;
  out["dropped"] = shared(dropped);
  out["not_covered"] = shared(not_covered);
  out["not_measured"] = shared(refused);
  out["incomplete"] = diagnosis.run.incomplete;
  out["earlier"] = diagnosis.run.earlier;
  out["skipped"] = diagnosis.run.skipped;
  out["killed"] = diagnosis.run.killed;
  out["expired"] = diagnosis.run.expired;
  std::vector<Damage> damage = diagnosis.run.damage;
  if (damage.empty()) damage = gathered.damage;
  out["damage"] = damage_json(damage);
  out["torn_tails"] = diagnosis.run.torn_tails;
  out["running"] = running;
  std::vector<int> ranks = diagnosis.run.ranks;
  std::erase_if(ranks, [filter = RowFilter(select)](int rank) { return !filter.takes_rank(rank); });
  out["kinds"] = Json::array();
  for (const auto& [kind, facts] : gathered.kinds) {
    out["kinds"].push_back({{"kind", kind},
                            {"steps", facts.steps},
                            {"first_step", facts.first_step},
                            {"last_step", facts.last_step},
                            {"rows", facts.rows},
                            {"fewer", fewer_json(facts, ranks)}});
  }
  out["steps"] = span_json(all, run);
  out["step_width"] = all.rows.width();
  out["left_out_lines"] = all.rows.left_out();
  out["lacking"] = lacking_json(all, run);
  out["own_cost"] = own_cost_json(books);
  return out;
}

Json restarts_json(const std::filesystem::path& run, const Account& books,
                   const GatheredRun& gathered) {
  struct Start {
    std::set<int> ranks;
    int world_size = 0;
    std::string started, host;
  };
  std::map<int, Start> starts;
  std::vector<Damage> said_elsewhere;
  for (const RankAccount& one : books.ranks) {
    Start& start = starts[one.restart];
    start.ranks.insert(one.rank);
    if (start.started.empty() || one.started < start.started) start.started = one.started;
    if (start.host.empty()) start.host = one.host;
  }
  for (const RankDirectory& place : rank_directories(run)) {
    if (place.error) continue;
    Start& start = starts[place.restart];
    start.world_size = std::max(start.world_size, read_run_json(place, said_elsewhere).world_size);
  }
  Json list = Json::array();
  for (const auto& [restart, start] : starts) {
    const auto first = gathered.restarts.find(restart);
    list.push_back({{"restart", restart},
                    {"first_step", first == gathered.restarts.end() ? Json() : Json(first->second)},
                    {"ranks", start.ranks.size()},
                    {"world_size", start.world_size},
                    {"started", start.started},
                    {"host", start.host}});
  }
  return list;
}

// Of a step: the verdict's, or else none.
Json changes_json(const Diagnosis& diagnosis) {
  if (!diagnosis.verdict) return Json::array();
  const detect::Finding& first = diagnosis.findings[*diagnosis.verdict];
  return setting_changes(diagnosis.run.declared, first.restart, first.ranks, first.step);
}

// The kind of rows, of those measured at the stage of a finding, that shows it best.
std::string shown_kind(const detect::Finding& finding, const std::set<std::string>& kinds) {
  const auto is_there = [&](std::string_view kind) { return kinds.contains(std::string(kind)); };
  for (const std::string_view kind :
       {detect::check_name(finding.check), kind::kParamOrigin, kind::kGradReduced, kind::kActv}) {
    if (is_there(kind) && stage_of_kind(kind) == finding.stage) return std::string(kind);
  }
  const auto first = std::ranges::find(kinds, finding.stage, stage_of_kind);
  return first == kinds.end() ? "" : *first;
}

Json norm_json(const Cell& cell, std::int64_t step) {
  const double norm = cell.value;
  Json text = std::isnan(norm) ? Json("NaN") : norm > 0 ? Json("inf") : Json("-inf");
  return {{"step", step}, {"norm", std::isfinite(norm) ? Json(norm) : text}};
}

// Of a verdict with one tensor its norm on the ranks that are named: before, at the step, at last.
Json evidence_json(const Diagnosis& diagnosis, const Gathered& gathered, int run) {
  constexpr std::size_t kMostRanks = 4;
  if (!diagnosis.verdict) return {};
  const detect::Finding& found = diagnosis.findings[*diagnosis.verdict];
  if (found.tensors.size() != 1) return {};
  const CellTable& table = gathered.rows;
  const auto is_its = [&](const Line& line) {
    return is_named(diagnosis, found, gathered, run, line);
  };
  std::set<std::string> kinds;
  for (const Line& line : table.lines()) {
    if (is_its(line)) kinds.insert(table.tensors()[line.tensor].kind);
  }
  const std::string kind = shown_kind(found, kinds);
  Json lines = Json::array();
  for (const Line& line : table.lines()) {
    if (lines.size() == kMostRanks) break;
    if (!is_its(line) || table.tensors()[line.tensor].kind != kind) continue;
    const std::vector<Cell>& cells = table.cells_of(line).cells;
    const auto at = std::ranges::find(cells, found.step, &Cell::bin);
    if (at == cells.end()) continue;
    const auto norm = [&](const Cell& cell) {
      return norm_json(cell, table.columns(kind).at(cell.bin).last);
    };
    lines.push_back({{"rank", line.rank},
                     {"before", at == cells.begin() ? Json() : norm(*std::prev(at))},
                     {"at", norm(*at)},
                     {"last", std::next(at) == cells.end() ? Json() : norm(cells.back())}});
  }
  if (lines.empty()) return {};
  return {{"kind", kind}, {"lines", lines}};
}

// Options that choose the same rows.
std::string selection_words(const ReadOptions& select, bool has_names, bool has_steps) {
  std::string words;
  const auto add = [&](const std::string& option, const std::vector<std::string>& values) {
    for (const std::string& one : values) words += " " + option + " " + shell_word(one);
  };
  add("--kind", select.kinds);
  if (!has_names) add("--name", select.include);
  add("--exclude", select.exclude);
  for (const int rank : select.ranks) words += " --rank " + std::to_string(rank);
  if (has_steps || (!select.first_step && !select.last_step)) return words;
  const auto text = [](const std::optional<std::int64_t>& step) {
    return step ? std::to_string(*step) : "";
  };
  return words + " --steps " + text(select.first_step) + ":" + text(select.last_step);
}

// The same as a condition of SQL on rows that a name or a kind chooses.
std::string selection_sql(const ReadOptions& select) {
  std::string sql, ranks;
  for (const int rank : select.ranks) ranks += (ranks.empty() ? "" : ", ") + std::to_string(rank);
  if (!ranks.empty()) sql += " AND rank IN (" + ranks + ")";
  if (select.first_step) sql += " AND step >= " + std::to_string(*select.first_step);
  if (select.last_step) sql += " AND step <= " + std::to_string(*select.last_step);
  return sql;
}

Json commands_json(const std::filesystem::path& run, const Diagnosis& diagnosis,
                   const ReadOptions& select) {
  const std::string word = shell_word(run.native());
  const std::string all = selection_words(select, false, false);
  const bool has_verdict = diagnosis.verdict.has_value();
  const std::string verdict = has_verdict ? next_command(diagnosis, run) : "trainmon show " + word;
  const bool has_name = verdict.find(" --name ") != std::string::npos;
  Json out;
  out["diagnose"] = "trainmon diagnose " + word + all;
  out["doctor"] = "trainmon doctor " + word;
  out["declared"] = "trainmon show " + word + " --declared";
  out["show"] = "trainmon show " + word + all;
  out["query"] = "trainmon query " + word;  // and SQL
  out["where"] = selection_sql(select);
  out["top"] = "trainmon top " + word + all;
  out["plot"] = "trainmon plot " + word;  // and what of
  out["verdict"] = verdict + selection_words(select, has_verdict && has_name, has_verdict);
  return out;
}

Json run_json(const std::filesystem::path& run, const ReportOptions& options,
              const Diagnosis& diagnosis, const Gathered& all, const Account& books, int number) {
  const GatheredRun& gathered = all.runs[static_cast<std::size_t>(number)];
  Json out;
  out["run"] = run.string();
  out["run_id"] = books.ranks.empty() ? "" : books.ranks.front().run_id;
  out["rows"] = gathered.count;
  out["ranks"] = diagnosis.run.ranks;
  out["world_size"] = books.missing.world_size;
  const ReadOptions& select = options.select;
  out["is_selection"] = chooses_rows(select);
  out["verdict_at"] = diagnosis.verdict ? Json(*diagnosis.verdict) : Json();
  out["words"] = words_of(diagnosis);
  out["diagnosis"] = Json::parse(diagnosis_json(diagnosis));
  out["has_declared"] = !diagnosis.run.declared.empty();
  out["changes"] = changes_json(diagnosis);
  out["restarts"] = restarts_json(run, books, gathered);
  out["record"] = record_json(books, diagnosis, all, number, select);
  out["evidence"] = evidence_json(diagnosis, all, number);
  out["spread"] = spread_json(diagnosis, all, number);
  out["commands"] = commands_json(run, diagnosis, select);
  return out;
}

// What `compare` found, in its words; of long lists the beginning, with how many there are.
Json comparison_json(std::span<const std::filesystem::path> runs, const ReadOptions& select,
                     const Report& made) {
  constexpr std::size_t kMost = 200;
  Json out;
  out["not_compared"] = printable(made.not_compared);
  out["command"] = "trainmon compare " + shell_word(runs[0].native()) + " " +
                   shell_word(runs[1].native()) + selection_words(select, false, false);
  if (!made.comparison) return out;
  const CompareReport& found = *made.comparison;
  out["found"] = Json::parse(compare_json(found));
  out["found"].erase("levels");
  out["left_out"] = Json::object();
  const auto cut = [&](Json& list, const std::string& name) {
    if (list.size() <= kMost) return;
    out["left_out"][name] = list.size() - kMost;
    list.erase(list.begin() + kMost, list.end());
  };
  for (const char* name : {"declared", "different_size", "different_dtype"}) {
    cut(out["found"][name], name);
  }
  for (const char* side : {"a", "b"}) {
    for (const char* name : {"only_here", "rows_only_here", "not_used"}) {
      cut(out["found"][side][name], std::string(side) + "." + name);
    }
  }
  out["words"] = {{"place", found.first ? place_text(*found.first) : ""},
                  {"size", found.first ? size_text(*found.first) : ""},
                  {"extent", extent_text(found)},
                  {"declared", Json::array()}};
  for (const DeclaredDifference& one : found.declared) {
    if (out["words"]["declared"].size() == kMost) break;
    out["words"]["declared"].push_back(declared_text(one));
  }
  return out;
}

}  // namespace

std::string first_screen_json(std::span<const std::filesystem::path> runs,
                              const ReportOptions& options, const Report& made,
                              const Gathered& gathered, std::span<const Account> books) {
  Json out = {{"format", 1}, {"version", kVersion}};
  out.update(run_json(runs[0], options, made.diagnosis, gathered, books[0], 0));
  if (made.other_diagnosis) {
    out["other"] = run_json(runs[1], options, *made.other_diagnosis, gathered, books[1], 1);
    out["comparison"] = comparison_json(runs, options.select, made);
  }
  return out.dump(-1, ' ', false, Json::error_handler_t::replace);
}

}  // namespace trainmon::page
