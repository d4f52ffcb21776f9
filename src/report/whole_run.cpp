#include "report/whole_run.h"

#include <algorithm>
#include <iterator>
#include <map>
#include <optional>
#include <ranges>
#include <set>
#include <string>
#include <utility>
#include <vector>

namespace trainmon::page {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::size_t kShown = 3;  // names

bool is_bad(const Cell& cell) {
  return (cell.marks & (mark::kNan | mark::kInf)) != 0;
}

// The element of an `update` is no part of a tensor, but whose formula it is.
std::string label(const Tensor& one) {
  return detect::tensor_text(
      {one.name, one.chunk, 0, one.kind == kind::kUpdate ? "" : one.element});
}

Json names_json(const std::vector<std::string>& names) {
  Json list = Json::array();
  for (const std::string& one : names) {
    if (list.size() < kShown) list.push_back(one);
  }
  return list;
}

// The lines of a kind on a rank, each with those of its cells.
using Lines = std::vector<std::pair<const Line*, const std::vector<Cell>*>>;

// In ascending order.
std::vector<std::int64_t> bins_of(const Lines& lines) {
  std::vector<std::int64_t> bins, both;
  for (const auto& [line, cells] : lines) {
    if (std::ranges::equal(*cells, bins, {}, &Cell::bin)) continue;
    both.clear();
    const auto of = [](const Cell& cell) { return cell.bin; };
    std::ranges::set_union(*cells | std::views::transform(of), bins, std::back_inserter(both));
    bins.swap(both);
  }
  return bins;
}

// The columns that a line lacks; neighbours among those of its rank are one.
struct Lack {
  std::int64_t columns = 0;
  std::vector<std::pair<std::int64_t, std::int64_t>> steps;
};

Lack lack_of(const std::vector<Cell>& cells, const std::vector<std::int64_t>& bins,
             const std::map<std::int64_t, Span>& spans, const auto& is_lost) {
  Lack lack;
  auto cell = cells.begin();
  bool is_open = false;
  for (const std::int64_t bin : bins) {
    if (cell != cells.end() && cell->bin == bin) {
      ++cell;
      is_open = false;
      continue;
    }
    const Span& span = spans.at(bin);
    if (is_lost(span)) continue;
    ++lack.columns;
    if (!is_open) lack.steps.emplace_back(span.first, span.last);
    lack.steps.back().second = span.last;
    is_open = true;
  }
  return lack;
}

}  // namespace

bool is_named(const Diagnosis& diagnosis, const detect::Finding& finding, const Gathered& gathered,
              int run, const Line& line) {
  if (line.run != run) return false;
  if (!finding.ranks.empty() && !std::ranges::count(finding.ranks, line.rank)) return false;
  const Tensor& one = gathered.rows.tensors()[line.tensor];
  return std::ranges::any_of(finding.tensors, [&](std::uint32_t number) {
    const detect::Tensor& named = diagnosis.tensors[number];
    const auto renamed = run == 0 ? gathered.renamed.end() : gathered.renamed.find(named.name);
    const std::string& name = renamed == gathered.renamed.end() ? named.name : renamed->second;
    return one.name == name && one.chunk == named.chunk &&
           (named.element.empty() || one.element == named.element);
  });
}

Json spread_json(const Diagnosis& diagnosis, const Gathered& gathered, int run) {
  if (!diagnosis.verdict) return {};
  const detect::Finding& found = diagnosis.findings[*diagnosis.verdict];
  if (found.check != detect::Check::finite) return {};
  detect::Finding on_any_rank = found;
  on_any_rank.ranks.clear();
  const CellTable& table = gathered.rows;
  std::map<std::string, std::pair<std::int64_t, std::int64_t>> others;  // -> its first column
  std::optional<std::pair<std::int64_t, std::int64_t>> last;
  for (const Line& line : table.lines()) {
    const Tensor& tensor = table.tensors()[line.tensor];
    const auto& columns = table.columns(tensor.kind);
    const auto span = [&](const Cell& cell) {
      const Span& one = columns.at(cell.bin);
      return std::pair(one.first, one.last);
    };
    const std::vector<Cell>& cells = table.cells_of(line).cells;
    if (line.run != run) continue;
    if (is_named(diagnosis, on_any_rank, gathered, run, line)) {
      const auto bad = std::find_if(cells.rbegin(), cells.rend(), is_bad);
      const bool is_stage = stage_of_kind(tensor.kind) == found.stage;
      if (!is_stage || bad == cells.rend()) continue;
      if (!is_named(diagnosis, found, gathered, run, line)) continue;
      last = last ? std::max(*last, span(*bad)) : span(*bad);
      continue;
    }
    const bool is_known =  // the cells are those of a line of the same tensor and run
        line.same_as >= 0 && table.lines()[static_cast<std::size_t>(line.same_as)].run == run;
    if (is_known) continue;
    const auto bad = std::ranges::find_if(cells, [&](const Cell& cell) {
      return is_bad(cell) && columns.at(cell.bin).last >= found.step;
    });
    if (bad == cells.end()) continue;
    const auto [known, is_new] = others.try_emplace(label(tensor), span(*bad));
    if (!is_new) known->second = std::min(known->second, span(*bad));
  }
  std::vector<std::pair<std::pair<std::int64_t, std::int64_t>, std::string>> order;
  for (const auto& [name, first] : others) order.emplace_back(first, name);
  std::ranges::sort(order);
  std::vector<std::string> names;
  for (const auto& [first, name] : order) names.push_back(name);
  const auto first = order.empty() ? Json() : Json{order[0].first.first, order[0].first.second};
  return {{"last", last ? Json{last->first, last->second} : Json()},
          {"others", names.size()},
          {"names", names_json(names)},
          {"first", first}};
}

Json lacking_json(const Gathered& gathered, int run) {
  struct Group {
    std::set<std::string> kinds;
    std::int64_t columns = 0;
  };
  const CellTable& table = gathered.rows;
  std::map<std::pair<std::string, int>, Lines> of_ranks;
  for (const Line& line : table.lines()) {
    if (line.run != run) continue;
    of_ranks[{table.tensors()[line.tensor].kind, line.rank}].emplace_back(
        &line, &table.cells_of(line).cells);
  }
  std::map<Tensor, Lack> lacks;                          // of the rank that lacks most
  std::set<std::vector<const std::vector<Cell>*>> done;  // ranks that hold the same are one
  for (const auto& [where, lines] : of_ranks) {
    std::vector<const std::vector<Cell>*> all;
    for (const auto& [line, cells] : lines) all.push_back(cells);
    const auto size = [](const auto* cells) { return cells->size(); };
    const bool is_even =
        std::ranges::count(all, lines.front().second->size(), size) == std::ranges::ssize(all);
    if (!done.insert(std::move(all)).second) continue;
    const std::vector<std::int64_t> bins = bins_of(lines);
    if (is_even && bins.size() == lines.front().second->size()) continue;
    const auto is_lost = [&, rank = where.second](const Span& span) {
      const std::vector<Loss>& losses = gathered.runs[static_cast<std::size_t>(run)].losses;
      return std::ranges::any_of(losses, [&](const Loss& one) {
        return one.rank == rank && one.first_step <= span.last && one.last_step >= span.first;
      });
    };
    for (const auto& [line, cells] : lines) {
      Lack lack = lack_of(*cells, bins, table.columns(where.first), is_lost);
      Lack& known = lacks[table.tensors()[line->tensor]];
      if (lack.columns > known.columns) known = std::move(lack);
    }
  }
  // First the kinds of tensors that lack the same, then the tensors of kinds that do.
  std::map<std::pair<std::string, decltype(Lack::steps)>, Group> kinds;
  for (const auto& [tensor, lack] : lacks) {
    if (lack.columns == 0) continue;
    Group& group = kinds[{label(tensor), lack.steps}];
    group.kinds.insert(tensor.kind);
    group.columns = std::max(group.columns, lack.columns);
  }
  std::map<std::pair<std::set<std::string>, decltype(Lack::steps)>,
           std::pair<std::int64_t, std::vector<std::string>>>
      alike;
  for (const auto& [key, group] : kinds) {
    auto& [columns, names] = alike[{group.kinds, key.second}];
    columns = std::max(columns, group.columns);
    names.push_back(key.first);
  }
  Json list = Json::array();
  for (const auto& [key, found] : alike) {
    list.push_back({{"kinds", key.first},
                    {"names", names_json(found.second)},
                    {"tensors", found.second.size()},
                    {"columns", found.first},
                    {"steps", key.second}});
  }
  std::stable_sort(list.begin(), list.end(), [](const Json& a, const Json& b) {
    return a["tensors"].get<std::int64_t>() > b["tensors"].get<std::int64_t>();
  });
  return list;
}

}  // namespace trainmon::page
