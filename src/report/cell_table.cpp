// Widths are powers of two, so that a wider column is made of whole narrower ones.
#include "report/cell_table.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>

#include "answers/history.h"

namespace trainmon::page {
namespace {

// Fewer columns than these are no picture any more: lines are left out instead.
constexpr std::size_t kFewColumns = 128;

std::uint32_t sum(std::uint32_t a, std::uint32_t b) {
  constexpr std::uint64_t kMost = std::numeric_limits<std::uint32_t>::max();
  return static_cast<std::uint32_t>(std::min(kMost, std::uint64_t{a} + b));
}

bool is_same(float a, float b) {
  return std::memcmp(&a, &b, sizeof a) == 0;
}

bool is_same(const Cell& a, const Cell& b) {
  return a.bin == b.bin && a.marks == b.marks && a.nans == b.nans && a.infs == b.infs &&
         a.count == b.count && a.zeros == b.zeros && is_same(a.balance, b.balance) &&
         is_same(a.value, b.value) && is_same(a.low, b.low) && is_same(a.high, b.high) &&
         is_same(a.min, b.min) && is_same(a.max, b.max);
}

bool is_same(const std::vector<Cell>& a, const std::vector<Cell>& b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(),
                    [](const Cell& x, const Cell& y) { return is_same(x, y); });
}

}  // namespace

float narrowed(double value) {
  constexpr double kMost = std::numeric_limits<float>::max();
  if (!std::isfinite(value)) return static_cast<float>(value);
  return static_cast<float>(std::clamp(value, -kMost, kMost));
}

void Cell::add(const Cell& later) {
  const bool has_value = (later.marks & mark::kValue) != 0;
  if (has_value || (marks & mark::kValue) == 0) {
    value = later.value;
    balance = later.balance;
    count = later.count;
    zeros = later.zeros;
  }
  low = std::fmin(low, later.low);
  high = std::fmax(high, later.high);
  min = std::fmin(min, later.min);
  max = std::fmax(max, later.max);
  nans = sum(nans, later.nans);
  infs = sum(infs, later.infs);
  marks = static_cast<std::uint8_t>(marks | later.marks);
}

CellTable::CellTable(const CellTable& other)
    : most_(other.most_),
      first_close_(other.first_close_),
      last_close_(other.last_close_),
      width_(other.width_),
      cells_(other.cells_),
      left_out_(other.left_out_),
      is_full_(other.is_full_),
      tensors_(other.tensors_),
      lines_(other.lines_),
      tensor_numbers_(other.tensor_numbers_),
      line_numbers_(other.line_numbers_),
      kinds_(other.kinds_) {
  for (auto& [kind, columns] : kinds_) columns.newest = columns.spans.end();
  for (const Tensor& one : tensors_) columns_of_.push_back(&kinds_.at(one.kind));
}

std::int64_t CellTable::begin_of(std::int64_t step) const {
  if (step >= first_close_ && step <= last_close_) return step;
  const std::int64_t begin = column_begin(step, width_);
  return step > last_close_ ? std::max(begin, last_close_ + 1) : begin;
}

std::int64_t CellTable::line(const Tensor& tensor, int run, int rank) {
  const auto known = tensor_numbers_.find(tensor);
  if (known != tensor_numbers_.end()) {
    const auto line = line_numbers_.find({known->second, run, rank});
    if (line != line_numbers_.end()) return static_cast<std::int64_t>(line->second);
  }
  if (is_full_) {
    ++left_out_;
    return -1;
  }
  const auto [at, is_new] =
      tensor_numbers_.try_emplace(tensor, static_cast<std::uint32_t>(tensors_.size()));
  if (is_new) {
    tensors_.push_back(tensor);
    columns_of_.push_back(&kinds_[tensor.kind]);
  }
  line_numbers_[{at->second, run, rank}] = lines_.size();
  lines_.push_back({at->second, run, rank, -1, {}});
  return static_cast<std::int64_t>(lines_.size()) - 1;
}

void CellTable::note(Columns& columns, std::int64_t bin, std::int64_t step) {
  if (columns.newest == columns.spans.end() || columns.newest->first != bin) {
    columns.newest = columns.spans.try_emplace(bin, Span{step, step}).first;
  }
  Span& span = columns.newest->second;
  span.first = std::min(span.first, step);
  span.last = std::max(span.last, step);
}

void CellTable::add(std::int64_t number, std::int64_t step, Cell cell) {
  Line& line = lines_[static_cast<std::size_t>(number)];
  cell.bin = begin_of(step);
  note(*columns_of_[line.tensor], cell.bin, step);
  if (!line.cells.empty() && line.cells.back().bin == cell.bin) return line.cells.back().add(cell);
  const auto at = line.cells.empty() || line.cells.back().bin < cell.bin
                      ? line.cells.end()
                      : std::ranges::lower_bound(line.cells, cell.bin, {}, &Cell::bin);
  if (at != line.cells.end() && at->bin == cell.bin) return at->add(cell);
  const auto place = at - line.cells.begin();
  if (line.cells.size() == line.cells.capacity()) {  // a quarter more: the table is bounded
    line.cells.reserve(line.cells.size() + line.cells.size() / 4 + 4);
  }
  line.cells.insert(line.cells.begin() + place, cell);
  if (++cells_ > most_) make_room();
}

void CellTable::set_unusual(std::int64_t number, double score, const BadPlace& place) {
  Line& line = lines_[static_cast<std::size_t>(number)];
  if (!is_more_unusual(score, place, line.unusual, line.unusual_at)) return;
  line.unusual = score;
  line.unusual_at = place;
}

std::vector<std::size_t> CellTable::by_unusual() const {
  std::vector<std::size_t> numbers(lines_.size());
  std::iota(numbers.begin(), numbers.end(), std::size_t{0});
  std::ranges::stable_sort(numbers, [this](std::size_t a, std::size_t b) {
    return is_more_unusual(lines_[a].unusual, lines_[a].unusual_at, lines_[b].unusual,
                           lines_[b].unusual_at);
  });
  return numbers;
}

std::size_t CellTable::most_columns() const {
  std::size_t most = 0;
  for (const auto& [kind, columns] : kinds_) most = std::max(most, columns.spans.size());
  return most;
}

std::int64_t CellTable::places() const {
  std::int64_t places = 0;
  for (const Line& line : lines_) {
    if (line.same_as >= 0) continue;
    places += static_cast<std::int64_t>(columns_of_[line.tensor]->spans.size());
  }
  return places;
}

void CellTable::make_room() {
  while (cells_ > most_ / 2 && most_columns() > kFewColumns) {
    if (!coarsen()) break;
  }
  is_full_ = cells_ > most_;
}

bool CellTable::coarsen() {
  const std::size_t columns_before = most_columns();
  do {
    if (width_ > std::numeric_limits<std::int64_t>::max() / 4) return false;
    width_ *= 2;
    widen_columns();
  } while (most_columns() == columns_before && width_ < (std::int64_t{1} << 48));
  widen_cells();
  return most_columns() < columns_before;
}

// To the width that was set.
void CellTable::widen_columns() {
  for (auto& [kind, columns] : kinds_) {
    std::map<std::int64_t, Span> wider;
    for (const auto& [bin, span] : columns.spans) {
      const auto [at, is_new] = wider.try_emplace(begin_of(bin), span);
      at->second.last = std::max(at->second.last, span.last);
    }
    columns.spans = std::move(wider);
    columns.newest = columns.spans.end();
  }
}

void CellTable::widen_cells() {
  for (Line& line : lines_) {
    std::size_t kept = 0;
    for (Cell& cell : line.cells) {
      cell.bin = begin_of(cell.bin);
      if (kept > 0 && line.cells[kept - 1].bin == cell.bin) {
        line.cells[kept - 1].add(cell);
      } else {
        line.cells[kept++] = cell;
      }
    }
    cells_ -= static_cast<std::int64_t>(line.cells.size() - kept);
    line.cells.resize(kept);
    line.cells.shrink_to_fit();
  }
}

void CellTable::take(CellTable&& of_rank, int run, int rank) {
  if (lines_.empty() && tensors_.empty()) {
    *this = std::move(of_rank);
    return;
  }
  for (CellTable* const narrower : {this, &of_rank}) {
    const std::int64_t width = std::max(width_, of_rank.width_);
    if (narrower->width_ == width) continue;
    narrower->width_ = width;
    narrower->widen_columns();
    narrower->widen_cells();
  }
  left_out_ += of_rank.left_out_;
  for (Line& line : of_rank.lines_) {
    const std::int64_t number = this->line(of_rank.tensors_[line.tensor], line.run, line.rank);
    if (number < 0) continue;
    cells_ += static_cast<std::int64_t>(line.cells.size());
    Line& to = lines_[static_cast<std::size_t>(number)];
    to.cells = std::move(line.cells);
    to.cells.shrink_to_fit();
    to.unusual = line.unusual;
    to.unusual_at = line.unusual_at;
  }
  for (const auto& [kind, columns] : of_rank.kinds_) {
    const auto to = kinds_.find(kind);
    if (to == kinds_.end()) continue;  // none of its lines had room
    for (const auto& [bin, span] : columns.spans) {
      note(to->second, bin, span.first);
      note(to->second, bin, span.last);
    }
  }
  join_equal(run, rank);
  if (cells_ > most_) make_room();
}

void CellTable::join_equal(int run, int rank) {
  std::map<std::uint32_t, std::vector<std::size_t>> others;  // by tensor
  for (std::size_t i = 0; i < lines_.size(); ++i) {
    const bool is_before = std::tie(lines_[i].run, lines_[i].rank) < std::tie(run, rank);
    if (is_before && lines_[i].same_as < 0) others[lines_[i].tensor].push_back(i);
  }
  for (Line& line : lines_) {
    if (line.run != run || line.rank != rank || line.same_as >= 0) continue;
    for (const std::size_t other : others[line.tensor]) {
      // Where steps share columns, equal cells may come from values that differ.
      if (lines_[other].unusual_at.step != line.unusual_at.step) continue;
      if (!is_same(lines_[other].cells, line.cells)) continue;
      line.same_as = static_cast<std::int64_t>(other);
      cells_ -= static_cast<std::int64_t>(line.cells.size());
      line.cells = std::vector<Cell>();  // `{}` keeps the memory
      break;
    }
  }
}

void CellTable::keep(const std::vector<std::size_t>& numbers) {
  std::vector<Line> kept;
  std::vector<std::int64_t> now(lines_.size(), -1);
  for (const std::size_t number : numbers) {
    Line line = std::move(lines_[number]);
    if (line.same_as >= 0) {
      const auto whole = static_cast<std::size_t>(line.same_as);
      if (now[whole] < 0) {
        line.cells = std::move(lines_[whole].cells);
        now[whole] = static_cast<std::int64_t>(kept.size());
        line.same_as = -1;
      } else {
        line.same_as = now[whole];
      }
    } else if (now[number] >= 0) {  // a line that gave its cells up stands for it
      line.same_as = now[number];
      line.cells = std::vector<Cell>();  // `{}` keeps the memory
    } else {
      now[number] = static_cast<std::int64_t>(kept.size());
    }
    kept.push_back(std::move(line));
  }
  left_out_ += static_cast<std::int64_t>(lines_.size() - kept.size());
  lines_ = std::move(kept);
  is_full_ = true;
  line_numbers_.clear();
  for (std::size_t i = 0; i < lines_.size(); ++i) {
    line_numbers_[{lines_[i].tensor, lines_[i].run, lines_[i].rank}] = i;
  }
}

const std::map<std::int64_t, Span>& CellTable::columns(const std::string& kind) const {
  return kinds_.at(kind).spans;
}

std::vector<std::string> CellTable::kinds() const {
  std::vector<std::string> names;
  for (const auto& [kind, columns] : kinds_) names.push_back(kind);
  return names;
}

const Line& CellTable::cells_of(const Line& line) const {
  return line.same_as < 0 ? line : lines_[static_cast<std::size_t>(line.same_as)];
}

}  // namespace trainmon::page
