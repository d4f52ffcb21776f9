// Tables of columns for whoever speaks Arrow: the C data and stream interfaces
// (https://arrow.apache.org/docs/format/CDataInterface.html, CStreamInterface.html) in the capsules
// of https://arrow.apache.org/docs/format/CDataInterface/PyCapsuleInterface.html. A consumer shares
// the memory of the columns and keeps it as long as it needs it, without Python.
#pragma once

#include <nanobind/nanobind.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <variant>
#include <vector>

namespace trainmon {

// Distinct texts, numbered from 0.
struct Texts {
  std::vector<std::string> all;  // whatever bytes names have
  // The same as Arrow wants them, bytes that are no UTF-8 as "\xff": text i is bytes offsets[i] to
  // offsets[i + 1]. Throws std::length_error beyond 2 GiB.
  std::string bytes;
  std::vector<std::int32_t> offsets = {0};
  std::vector<std::int32_t> places;  // of text i there, where escaping made two texts equal

  explicit Texts(std::vector<std::string> texts);
};

// Numbers texts in the order in which they are first met.
class TextCoder {
 public:
  std::int32_t code(std::string_view text);
  // Those met so far; the same object as long as none was added.
  std::shared_ptr<const Texts> texts();

 private:
  std::vector<std::string> all_;
  std::unordered_map<std::string, std::int32_t> known_;
  std::shared_ptr<const Texts> texts_;
};

// One column: numbers, or numbers (int32) of texts.
struct Column {
  std::string name;
  std::variant<std::vector<std::int32_t>, std::vector<std::int64_t>, std::vector<std::uint32_t>,
               std::vector<std::uint64_t>, std::vector<double>>
      values;
  std::shared_ptr<const Texts> texts;     // that the values stand for; nullptr: they are numbers
  std::vector<std::uint8_t> are_unknown;  // 1 for a value that is not known; empty: all are known
};

// Columns of one length. Each keeps its own memory.
struct ColumnTable {
  std::int64_t rows = 0;
  std::vector<std::shared_ptr<Column>> columns;
};

// A dict of NumPy arrays over the memory of the columns. Numbers are an array, texts a pair
// (codes, list of str). An array is masked where values may be unknown. With the GIL.
nanobind::dict numpy_columns(const ColumnTable& table);

// A capsule "arrow_schema" of a struct with the columns of the table as fields. Texts are
// dictionaries.
nanobind::object arrow_schema(const ColumnTable& table);

// A capsule "arrow_array_stream" of tables with the columns of `like`. The consumer calls `next` on
// threads of its own, one at a time, without the GIL; nullptr ends the stream. What `next` throws
// the consumer gets as its text. A consumer that stops early frees all when it lets the stream go.
using NextTable = std::function<std::shared_ptr<const ColumnTable>()>;
nanobind::object arrow_stream(const ColumnTable& like, NextTable next);
// Of one table.
nanobind::object arrow_stream(std::shared_ptr<const ColumnTable> table);

}  // namespace trainmon
