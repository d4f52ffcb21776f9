// Values of many lines over steps, in bounded memory. When they become too many, neighbouring
// steps share a column. A column keeps the last value and the extremes of its steps.
#pragma once

#include <cstdint>
#include <limits>
#include <map>
#include <string>
#include <tuple>
#include <vector>

#include "model/first_bad.h"

namespace trainmon::page {

// What a cell holds, as bits. A column without a cell is absent.
namespace mark {
inline constexpr std::uint8_t kValue = 1;
inline constexpr std::uint8_t kNan = 2;
inline constexpr std::uint8_t kInf = 4;
inline constexpr std::uint8_t kDropped = 8;   // rows were lost here, or a device gave no value
inline constexpr std::uint8_t kSampled = 16;  // an estimate: of zeros and extremes nothing is known
}  // namespace mark

// A double as a float that is finite where the double is.
float narrowed(double value);

struct Cell {
  std::int64_t bin = 0;  // where its column begins
  float value = 0.0F;    // the last one
  float low = 0.0F;      // of all values
  float high = 0.0F;
  float min = 0.0F;  // of all elements
  float max = 0.0F;
  float balance = 0.0F;     // mean over standard deviation of the last one
  std::uint32_t count = 0;  // elements of the last one; numbers of elements are at most 2^32 - 1
  std::uint32_t nans = 0;
  std::uint32_t infs = 0;
  std::uint8_t zeros = 0;  // share of the last one, in 255ths: 0 and 255 are exact
  std::uint8_t marks = mark::kValue;

  // Takes in what comes later.
  void add(const Cell& later);
};

struct Tensor {
  std::string kind;
  std::int32_t chunk = 0;
  std::string name;
  std::string element;
  auto operator<=>(const Tensor&) const = default;
};

// One tensor on one rank of a run.
struct Line {
  std::uint32_t tensor = 0;
  int run = 0;  // 1: of the run that the first one is held against
  int rank = 0;
  std::int64_t same_as = -1;  // a line before it with the same cells, which this one gave up
  std::vector<Cell> cells;    // by bin
  // How unusual it is in its own history, and where: src/answers/history.h. NaN where it has none.
  double unusual = std::numeric_limits<double>::quiet_NaN();
  BadPlace unusual_at = {};
};

// Where the column of a step begins, of columns of `width` steps; steps may be negative.
inline std::int64_t column_begin(std::int64_t step, std::int64_t width) {
  return step - (step % width + width) % width;
}

// The steps that a column really has.
struct Span {
  std::int64_t first = 0;
  std::int64_t last = 0;
};

class CellTable {
 public:
  // Steps from `first_close` to `last_close` keep columns of their own.
  CellTable(std::int64_t most_cells, std::int64_t first_close, std::int64_t last_close)
      : most_(most_cells), first_close_(first_close), last_close_(last_close) {}
  CellTable(const CellTable& other);
  CellTable(CellTable&&) = default;
  CellTable& operator=(CellTable&&) = default;

  // The line of a tensor on a rank; -1 when no line can be taken in any more.
  std::int64_t line(const Tensor& tensor, int run, int rank);
  // Of a line that line() gave. Steps mostly ascend; `cell.bin` is set here.
  void add(std::int64_t line, std::int64_t step, Cell cell);
  // Of such a line, once all of its cells are there.
  void set_unusual(std::int64_t line, double score, const BadPlace& place);
  // Lines of this rank with the cells of a rank before it give theirs up. Runs and their ranks come
  // in ascending order.
  void join_equal(int run, int rank);
  // Takes in the lines of a table of a rank that comes behind those which are here. Both were
  // made for as many cells and the same steps. Equal lines give their cells up.
  void take(CellTable&& of_rank, int run, int rank);
  // Twice as many steps share a column. False where that changes nothing.
  bool coarsen();
  // Keeps the lines of these numbers, in this order, and counts the others as left out.
  void keep(const std::vector<std::size_t>& lines);

  std::int64_t width() const { return width_; }
  std::int64_t cells() const { return cells_; }
  // Those of a page, which has one in each column for each line that did not give its cells up.
  std::int64_t places() const;
  std::int64_t left_out() const { return left_out_; }
  const std::vector<Tensor>& tensors() const { return tensors_; }
  const std::vector<Line>& lines() const { return lines_; }
  // Columns of a kind, by where they begin.
  const std::map<std::int64_t, Span>& columns(const std::string& kind) const;
  std::vector<std::string> kinds() const;
  const Line& cells_of(const Line& line) const;
  // Where the column that a step is in begins.
  std::int64_t begin_of(std::int64_t step) const;
  // The numbers of all lines, the most unusual ones first.
  std::vector<std::size_t> by_unusual() const;

 private:
  struct Columns {
    std::map<std::int64_t, Span> spans;
    std::map<std::int64_t, Span>::iterator newest = spans.end();
  };
  void note(Columns& columns, std::int64_t bin, std::int64_t step);
  std::size_t most_columns() const;
  void make_room();
  void widen_columns();
  void widen_cells();

  std::int64_t most_;
  std::int64_t first_close_, last_close_;
  std::int64_t width_ = 1;
  std::int64_t cells_ = 0;
  std::int64_t left_out_ = 0;
  bool is_full_ = false;
  std::vector<Tensor> tensors_;
  std::vector<Line> lines_;
  std::map<Tensor, std::uint32_t> tensor_numbers_;
  std::map<std::tuple<std::uint32_t, int, int>, std::size_t> line_numbers_;
  std::map<std::string, Columns> kinds_;
  std::vector<Columns*> columns_of_;  // by tensor
};

}  // namespace trainmon::page
