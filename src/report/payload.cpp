// Each kind is a table of its own, line after line, with all columns that the kind has anywhere.
#include "report/payload.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>
#include <set>
#include <span>

#include "report/encoding.h"
#include "report/gzip.h"

namespace trainmon::page {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::size_t kHistory = 16;
constexpr std::size_t kLeastHistory = 8;

double median(std::span<const double> sorted) {
  const std::size_t middle = sorted.size() / 2;
  if (sorted.size() % 2 == 1) return sorted[middle];
  return (sorted[middle] + sorted[middle - 1]) / 2.0;
}

// The last values of a line, in order of their size.
class Recent {
 public:
  std::size_t size() const { return count_; }
  void add(double value) {
    double* end = sorted_.data() + count_;
    if (count_ == kHistory) {
      double* const oldest = std::lower_bound(sorted_.data(), end, in_turn_[next_]);
      std::copy(oldest + 1, end--, oldest);
    } else {
      ++count_;
    }
    double* const at = std::upper_bound(sorted_.data(), end, value);
    std::copy_backward(at, end, end + 1);
    *at = value;
    in_turn_[next_] = value;
    next_ = (next_ + 1) % kHistory;
  }
  double center() const { return median({sorted_.data(), count_}); }
  // The median distance from it.
  double spread(double center) const {
    std::array<double, kHistory> distances;
    const double* const end = sorted_.data() + count_;
    const double* above = std::lower_bound(sorted_.data(), end, center);
    const double* below = above;  // the one before it is next
    for (std::size_t i = 0; i < count_; ++i) {
      const bool is_below =
          above == end || (below != sorted_.data() && center - below[-1] < *above - center);
      distances[i] = std::abs((is_below ? *--below : *above++) - center);
    }
    return median({distances.data(), count_});
  }

 private:
  std::array<double, kHistory> sorted_{}, in_turn_{};
  std::size_t count_ = 0, next_ = 0;
};

// The cells of one kind, with all of its columns.
class KindTable {
 public:
  // Of its own lines one of so many.
  KindTable(const CellTable& table, const std::string& kind, std::size_t one_of = 1)
      : table_(table), kind_(kind) {
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
    const Unusual found = unusual(line);
    Json score = nullptr;
    if (std::isfinite(found.score)) score = found.score;
    if (std::isinf(found.score)) score = "inf";
    const auto bin = std::ranges::lower_bound(bins_, found.bin);
    return {line.tensor,         line.rank, score,
            bin - bins_.begin(), line.run,  line.cells.empty() ? 0 : line.cells.front().count};
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
  std::vector<std::int64_t> bins_;
  std::vector<std::size_t> own_, same_;  // numbers of lines
  std::map<std::size_t, std::size_t> numbers_;
  bool has_ranges_ = false, has_counts_ = false, has_bad_ = false, has_zeros_ = false;
};

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
  std::set<std::uint32_t> used;
  for (const Line& line : table.lines()) used.insert(line.tensor);
  out["tensors"] = Json::array();
  for (std::uint32_t i = 0; i < table.tensors().size(); ++i) {
    const Tensor& one = table.tensors()[i];
    out["tensors"].push_back(used.contains(i) ? Json{one.name, one.chunk, one.element} : Json());
  }
  out["kinds"] = Json::array();
  for (const std::string& kind : table.kinds()) {
    out["kinds"].push_back(KindTable(table, kind).json(places, is_curve, bytes));
  }
  out["left_out"] = table.left_out();
  return out;
}

}  // namespace

Unusual unusual(const Line& line) {
  double least = std::numeric_limits<double>::infinity();
  for (const Cell& cell : line.cells) {
    if ((cell.marks & (mark::kNan | mark::kInf)) != 0) {
      return {std::numeric_limits<double>::infinity(), cell.bin};
    }
    if (cell.value > 0.0F) least = std::min(least, double{cell.value});
  }
  Unusual found{std::numeric_limits<double>::quiet_NaN(), 0};
  if (std::isinf(least)) return found;
  Recent before;
  for (const Cell& cell : line.cells) {
    if (std::isnan(cell.value)) continue;
    const double now = std::log10(std::max(double{cell.value}, least / 10.0));
    if (before.size() >= kLeastHistory) {
      const double center = before.center();
      const double score = std::abs(now - center) / std::max(1.4826 * before.spread(center), 0.01);
      if (!(score <= found.score)) found = {score, cell.bin};
    }
    before.add(now);
  }
  return found;
}

namespace {

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
  std::string bytes;
  for (const std::string& kind : table.kinds()) {
    KindTable(table, kind, one_of).json(places, false, bytes);
  }
  return static_cast<std::int64_t>(gzipped(bytes).size() * one_of);
}

std::string payload(const Gathered& gathered) {
  std::string columns;
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
  const std::string json = out.dump(-1, ' ', false, Json::error_handler_t::replace);
  std::string bytes;
  const auto length = static_cast<std::uint32_t>(json.size());
  for (unsigned shift = 0; shift < 32; shift += 8) {
    bytes += static_cast<char>(length >> shift & 0xFFU);
  }
  return bytes + json + columns;
}

}  // namespace trainmon::page
