// A run, of any format, as rows that can be matched with those of another one.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "compare/compare.h"
#include "compare/compare_tolerance.h"
#include "trainmon/record.h"

namespace trainmon {

// Between the parts of ComparedTensor::match, of which the name is the last.
inline constexpr char kMatchSeparator = '\x1f';

// Whether a row of this kind is of what goes in or out of a module.
bool is_of_module(std::string_view kind);

struct ComparedTensor {
  std::string kind;
  std::int32_t chunk = 0;
  std::string name;  // as the run has it
  std::string element;
  DType dtype = DType::float32;
  bool has_dtype = true;  // false: the source does not say
  std::string match;      // equal for the same tensor of another run: kind, chunk, matched_name()
};

// "actv blocks.0 input.0"; the root module is "(root)".
std::string tensor_text(const ComparedTensor& tensor);

struct ComparedRow {
  std::uint32_t tensor = 0;  // index into ComparedRun::tensors
  std::int64_t step = 0;
  std::int32_t attempt = 0;
  std::int32_t rank = 0;
  // For matching: gradients that add up count back from the last one (0, -1, ...), what there is
  // once a step has 0, all else counts its backwards.
  std::int32_t place = 0;
  std::int32_t accum = 0;
  std::int32_t call = 0;
  std::uint64_t seq = 0;  // as executed; of sources that do not say, as read
  ComparedValues values{};
};

struct ComparedRun {
  std::vector<ComparedTensor> tensors;
  std::vector<ComparedRow> rows;
  // Activations as every rank saw them, where `rows` holds them merged over ranks.
  std::vector<ComparedRow> by_rank;
  std::vector<ReadDeclared> declared;
  ComparedSide side;   // but for unmatched and only_here
  int world_size = 0;  // 0: not known
  // Backwards of each step, as far as rows tell.
  std::map<std::int64_t, std::int32_t> backwards;
  std::string holds;        // ranks and kinds, selected or not; empty: not known
  double resolution = 0.0;  // of the values as written: msprobe's files hold six decimals
  // The coarsest unit round-off among activations and gradients.
  double roundoff = 0.0;
};

// Throws what the sources throw. Kinds whose values jump with a rounding (mg_direction) or are no
// rows are left out.
ComparedRun read_compared(const std::filesystem::path& run, const ReadOptions& select);

// Where both runs have activations of the same rank (and as many ranks, as far as is known), they
// are taken rank by rank instead of merged.
void take_common_ranks(ComparedRun& a, ComparedRun& b);

}  // namespace trainmon
