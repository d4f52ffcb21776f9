// Each kind is a table of its own, line after line, with all columns that the kind has anywhere.
#include "report/payload.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <span>

#include "compare/compare.h"
#include "model/layers.h"
#include "report/encoding.h"
#include "report/gzip.h"

namespace trainmon::page {
namespace {

using Json = nlohmann::ordered_json;

// The cells of one kind, with all of its columns.
class KindTable {
 public:
  // `places` of all lines of the table among the most unusual ones. Of its own lines one of so
  // many.
  KindTable(const CellTable& table, const std::string& kind, const std::vector<std::size_t>& places,
            std::size_t one_of = 1)
      : table_(table), kind_(kind), places_(places) {
    std::size_t count = 0;
    for (const auto& [bin, span] : table.columns(kind)) bins_.push_back(bin);
    for (std::size_t i = 0; i < table.lines().size(); ++i) {
      const Line& line = table.lines()[i];
      if (table.tensors()[line.tensor].kind != kind) continue;
      if (line.same_as < 0 && count++ % one_of != 0) continue;
      if (line.same_as < 0) {
        numbers_[i] = own_.size();
        own_.push_back(i);
      } else if (one_of == 1) {
        same_.push_back(i);
      }
      for (const Cell& cell : line.cells) {
        has_ranges_ |= cell.low < cell.value || cell.high > cell.value;
        has_bad_ |= (cell.nans | cell.infs) != 0;
        has_zeros_ |= cell.zeros != 0;
        has_counts_ |= cell.count != line.cells.front().count;
      }
    }
  }

  // Appends the columns to `bytes`.
  Json json(const std::map<std::int64_t, std::size_t>& places, bool is_curve, std::string& bytes) {
    Json out;
    out["kind"] = kind_;
    out["stage"] = detect::stage_name(stage_of_kind(kind_));
    out["bins"] = Json::array();
    for (const std::int64_t bin : bins_) out["bins"].push_back(places.at(bin));
    out["lines"] = Json::array();
    for (const std::size_t number : own_) out["lines"].push_back(line_json(number));
    out["same"] = Json::array();
    for (const std::size_t number : same_) {
      const Line& line = table_.lines()[number];
      out["same"].push_back(
          {line.tensor, line.rank, numbers_.at(static_cast<std::size_t>(line.same_as)), line.run});
    }
    out["at"] = bytes.size();
    out["columns"] = Json::array();
    const auto add = [&](const char* name, auto member) {
      out["columns"].push_back(name);
      append(member, bytes);
    };
    add("value", &Cell::value);
    if (has_ranges_) add("low", &Cell::low);
    if (has_ranges_) add("high", &Cell::high);
    if (!is_curve) {
      out["columns"].push_back("balance");
      append_halves(&Cell::balance, half_near, bytes);
      out["columns"].push_back("min");
      append_halves(&Cell::min, half_below, bytes);
      out["columns"].push_back("max");
      append_halves(&Cell::max, half_above, bytes);
    }
    if (has_counts_) add("count", &Cell::count);
    if (has_bad_) add("nans", &Cell::nans);
    if (has_bad_) add("infs", &Cell::infs);
    if (has_zeros_) {
      out["columns"].push_back("zeros");
      for_each([&](const Cell* cell) { bytes += cell == nullptr ? '\0' : char(cell->zeros); });
    }
    out["columns"].push_back("marks");
    for_each([&](const Cell* cell) { bytes += cell == nullptr ? '\0' : char(cell->marks); });
    return out;
  }

 private:
  Json line_json(std::size_t number) const {
    const Line& line = table_.lines()[number];
    Json score = nullptr;
    if (std::isfinite(line.unusual)) score = line.unusual;
    if (std::isinf(line.unusual)) score = "inf";
    const auto bin = std::ranges::lower_bound(bins_, table_.begin_of(line.unusual_at.step));
    return {line.tensor,    line.rank,
            score,          std::isnan(line.unusual) ? 0 : bin - bins_.begin(),
            line.run,       line.cells.empty() ? 0 : line.cells.front().count,
            places_[number]};
  }
  template <typename Take>
  void for_each(const Take& take) const {
    for (const std::size_t number : own_) {
      auto cell = table_.lines()[number].cells.begin();
      const auto end = table_.lines()[number].cells.end();
      for (const std::int64_t bin : bins_) {
        take(cell != end && cell->bin == bin ? &*cell++ : nullptr);
      }
    }
  }
  template <typename Number>
  void append(Number Cell::*member, std::string& bytes) const {
    std::vector<Number> values;
    values.reserve(own_.size() * bins_.size());
    Number none = 0;
    if constexpr (std::is_same_v<Number, float>) none = std::numeric_limits<float>::quiet_NaN();
    for_each([&](const Cell* cell) { values.push_back(cell == nullptr ? none : cell->*member); });
    append_planes(bytes, std::span<const Number>(values));
  }
  void append_halves(float Cell::*member, std::uint16_t (*half)(float), std::string& bytes) const {
    std::vector<std::uint16_t> values;
    values.reserve(own_.size() * bins_.size());
    const float none = std::numeric_limits<float>::quiet_NaN();
    for_each([&](const Cell* cell) { values.push_back(half(cell ? cell->*member : none)); });
    append_planes(bytes, std::span<const std::uint16_t>(values));
  }

  const CellTable& table_;
  const std::string kind_;
  const std::vector<std::size_t>& places_;
  std::vector<std::int64_t> bins_;
  std::vector<std::size_t> own_, same_;  // numbers of lines
  std::map<std::size_t, std::size_t> numbers_;
  bool has_ranges_ = false, has_counts_ = false, has_bad_ = false, has_zeros_ = false;
};

// Numbers for texts, in the order in which they came.
class Texts {
 public:
  std::size_t operator()(const std::string& text) {
    return numbers_.try_emplace(text, numbers_.size()).first->second;
  }
  Json json() const {
    std::vector<std::string> all(numbers_.size());
    for (const auto& [text, number] : numbers_) all[number] = text;
    return all;
  }

 private:
  std::map<std::string, std::size_t> numbers_;
};

// Of each tensor that a line has left: what it is, and where it stands in the model.
void put_tensors(const CellTable& table, bool is_curve, Json& out) {
  std::set<std::uint32_t> used;
  for (const Line& line : table.lines()) used.insert(line.tensor);
  Texts layers, parts;
  out["tensors"] = Json::array();
  for (std::uint32_t i = 0; i < table.tensors().size(); ++i) {
    const Tensor& one = table.tensors()[i];
    Json here = used.contains(i) ? Json{one.name, one.chunk, one.element} : Json();
    if (used.contains(i) && !is_curve) {
      const std::string name = unwrapped_name(one.name);
      const std::string layer = layer_of(name);
      here.push_back(layers(layer.empty() ? name : layer));
      const std::optional<LayerPart> part = part_of(name);
      if (part) {
        const std::string element = one.element.empty() ? "" : " " + one.element;
        here.push_back(parts(part->pattern + element));
        here.push_back(part->layer);
      }
    }
    out["tensors"].push_back(std::move(here));
  }
  if (is_curve) return;
  out["layers"] = layers.json();
  out["parts"] = parts.json();
}

// What the columns of a table take at most. Memory that is not written to is none.
std::size_t most_bytes(const CellTable& table) {
  constexpr std::size_t kMostOfCell = 32;
  std::map<std::string, std::size_t> lines;  // by kind
  for (const Line& line : table.lines()) {
    if (line.same_as < 0) ++lines[table.tensors()[line.tensor].kind];
  }
  std::size_t cells = 0;
  for (const auto& [kind, count] : lines) cells += count * table.columns(kind).size();
  return cells * kMostOfCell;
}

Json table_json(const CellTable& table, bool is_curve, std::string& bytes) {
  Json out;
  std::map<std::int64_t, Span> spans;
  for (const std::string& kind : table.kinds()) {
    for (const auto& [bin, span] : table.columns(kind)) {
      const auto [at, is_new] = spans.try_emplace(bin, span);
      at->second.first = std::min(at->second.first, span.first);
      at->second.last = std::max(at->second.last, span.last);
    }
  }
  std::map<std::int64_t, std::size_t> places;
  out["width"] = table.width();
  out["bins"] = Json::array();
  for (const auto& [bin, span] : spans) {
    places[bin] = places.size();
    out["bins"].push_back({span.first, span.last});
  }
  put_tensors(table, is_curve, out);
  std::vector<std::size_t> unusual_places(table.lines().size());
  for (std::size_t place = 0; const std::size_t line : table.by_unusual()) {
    unusual_places[line] = place++;
  }
  out["kinds"] = Json::array();
  for (const std::string& kind : table.kinds()) {
    out["kinds"].push_back(KindTable(table, kind, unusual_places).json(places, is_curve, bytes));
  }
  out["left_out"] = table.left_out();
  return out;
}

// Of each column of a line the shares below, above and NaN, then of all bins: the square root in
// 255ths, rounded up.
Json histograms_json(const HistogramTable& table, std::string& bytes) {
  Json out;
  out["bins"] = table.bins();
  out["at"] = bytes.size();
  out["steps"] = Json::array();
  for (const auto& [begin, span] : table.columns()) out["steps"].push_back({span.first, span.last});
  out["lines"] = Json::array();
  for (const HistogramTable::Line& line : table.lines()) {
    const Histogram& one = line.columns.begin()->second;
    out["lines"].push_back({line.tensor.kind, line.tensor.name, line.tensor.chunk,
                            line.tensor.element, line.run, line.rank, one.low, one.high});
    for (const auto& [begin, span] : table.columns()) {
      const auto found = line.columns.find(begin);
      std::vector<std::int64_t> counts(table.bins() + 3);
      if (found != line.columns.end()) {
        const Histogram& now = found->second;
        counts = {now.below, now.above, now.nans};
        counts.insert(counts.end(), now.bins.begin(), now.bins.end());
      }
      double all = 0.0;
      for (const std::int64_t count : counts) all += static_cast<double>(count);
      for (const std::int64_t count : counts) {
        const double share = count > 0 ? static_cast<double>(count) / all : 0.0;
        bytes += static_cast<char>(static_cast<unsigned char>(std::ceil(255.0 * std::sqrt(share))));
      }
    }
  }
  out["left_out"] = table.left_out();
  return out;
}

}  // namespace

std::int64_t sampled_bytes(const CellTable& table, std::size_t one_of) {
  std::map<std::int64_t, std::size_t> places;  // of no column: the steps are not looked at
  for (const std::string& kind : table.kinds()) {
    for (const auto& [bin, span] : table.columns(kind)) places[bin] = 0;
  }
  const std::vector<std::size_t> unusual_places(table.lines().size());  // likewise
  std::string bytes;
  for (const std::string& kind : table.kinds()) {
    KindTable(table, kind, unusual_places, one_of).json(places, false, bytes);
  }
  return static_cast<std::int64_t>(gzipped(bytes).size() * one_of);
}

std::string payload(const Gathered& gathered) {
  std::string columns;
  columns.reserve(most_bytes(gathered.rows) + most_bytes(gathered.curves));
  Json out;
  out["rows"] = table_json(gathered.rows, false, columns);
  out["curves"] = table_json(gathered.curves, true, columns);
  out["histograms"] = histograms_json(gathered.histograms, columns);
  out["losses"] = Json::array();
  for (std::size_t run = 0; run < gathered.runs.size(); ++run) {
    for (const Loss& one : gathered.runs[run].losses) {
      out["losses"].push_back(
          {one.rank, one.restart, one.first_step, one.last_step, one.rows, one.reason, run});
    }
  }
  out["renamed"] = gathered.renamed;
  std::string json = out.dump(-1, ' ', false, Json::error_handler_t::replace);
  out = Json();
  std::string length;
  for (unsigned shift = 0; shift < 32; shift += 8) {
    length += static_cast<char>(json.size() >> shift & 0xFFU);
  }
  columns.insert(0, json.insert(0, length));
  return columns;
}

}  // namespace trainmon::page
