// Offline: two runs held against each other, row by row.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "trainmon/read.h"

namespace trainmon {

struct CompareOptions {
  std::filesystem::path a;  // the run that is taken to be right
  std::filesystem::path b;
  std::optional<std::filesystem::path> null;  // a repeat of A, which says how far runs wander
  ReadOptions select;                         // of all of them; shards are merged in any case
  double factor = 1.0;                        // on every tolerance
  std::size_t worst = 10;                     // lines of the table of the worst
};

// One statistic of one tensor at one place, where the runs are furthest apart for what the place
// allows. `difference` and `tolerance` are relative to the size of the tensor's values
// (docs/compare.md); of weights, what this step added. ratio = difference / tolerance, infinite
// where only one run has a NaN or an infinity.
struct Difference {
  std::int64_t step = 0;
  std::int32_t attempt = 0;
  std::int32_t micro_step = 0;
  std::int32_t call = 0;
  std::int32_t rank = 0;  // -1: merged over the ranks of both
  std::string kind;
  std::int32_t chunk = 0;
  std::string name;  // as A has it
  std::string element;
  std::string stat;
  double a = 0.0;
  double b = 0.0;
  double difference = 0.0;
  double tolerance = 0.0;
  double ratio = 0.0;
};

// A number or text of an optimizer's group (lr, weight_decay, ...) that is not the same from a step
// on; as text, "?" where it is not known, "" where a run does not have it.
struct DeclaredDifference {
  std::int64_t step = 0;
  std::int32_t optimizer = 0;
  std::int32_t group = 0;
  std::string name;
  std::string a;
  std::string b;
  std::vector<int> ranks;  // ascending, that see it; empty: all
};

// What one of the runs has.
struct ComparedSide {
  std::filesystem::path path;
  std::string format;  // of SourceFormat
  std::int64_t rows = 0;
  std::int64_t unmatched = 0;  // rows without a counterpart
  std::int64_t first_step = -1;
  std::int64_t last_step = -1;
  std::vector<int> ranks;              // ascending; -1: merged
  std::vector<std::string> kinds;      // ascending
  std::vector<std::string> only_here;  // "kind name element", of tensors the other one lacks
  // "kind name element: step 10", of rows that the other one lacks among the steps it has
  std::vector<std::string> rows_only_here;
  std::vector<std::string> not_used;  // damage, rejected rows, missing ranks
};

struct CompareReport {
  std::optional<Difference> first;           // beyond tolerance, in the order of execution
  std::vector<DeclaredDifference> declared;  // by step
  std::vector<Difference> worst;             // each tensor once, by ratio; NaN and infinities first
  // By kind and step the largest ratio, for pictures.
  struct Level {
    std::string kind;
    std::int64_t step = 0;
    double ratio = 0.0;
    std::string name;
  };
  std::vector<Level> levels;  // by kind, step
  ComparedSide a, b;
  std::optional<ComparedSide> null;
  std::int64_t rows = 0;     // pairs of rows compared
  std::int64_t tensors = 0;  // that they are of
  std::int64_t beyond = 0;   // pairs beyond tolerance
  std::int64_t tensors_beyond = 0;
  std::vector<std::string> different_size;   // tensors not compared for it, with both sizes
  std::vector<std::string> different_dtype;  // compared all the same
  std::vector<std::string> remarks;
};

// Rows are matched by kind, name without the prefixes of wrappers, element, step, attempt, micro
// step, call and rank. Values merged over ranks match each rank. Throws std::runtime_error where
// a directory holds no run or the runs have no row in common, naming what each has. Throws
// std::invalid_argument for options that make no sense.
CompareReport compare(const CompareOptions& options);

// As one JSON object (docs/compare.md); numbers that are not finite as "nan", "inf", "-inf".
std::string compare_json(const CompareReport& report);

// "[chunk 1: ]2.weight[ input.0]"
std::string tensor_text(const Difference& found);
// "step 15, rank 1, param_origin 2.weight"
std::string place_text(const Difference& found);
// "norm is 1 in A, 2 in B: relative difference 0.5, 1e4 times what is tolerated there"
std::string size_text(const Difference& found);
// "3 of 40 rows and 1 of 4 tensors are beyond tolerance", or that none is.
std::string extent_text(const CompareReport& report);
// "lr of group 0 differs from step 12 on: 0.001 in A, 0.0005 in B"
std::string declared_text(const DeclaredDifference& one);

// A name without what wrappers put into it: module, _orig_mod, _fsdp_wrapped_module,
// _checkpoint_wrapped_module and the like, wherever they stand.
std::string unwrapped_name(std::string_view name);

}  // namespace trainmon
