// The examples of the C++ reference: tensors, statistics, the probe.
#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <string_view>
#include <tuple>
#include <vector>

#include "reference/example.h"
#include "trainmon/probe.h"
#include "trainmon/stat.h"
#include "trainmon/tensor.h"

namespace trainmon {
namespace {

using testing::Floats;

// example tensor.h: A tensor is a pointer with a type, sizes and strides
TEST(Reference, Tensor) {
  const std::vector<float> values = {1, 2, 3, 4, 5, 6};
  const std::int64_t sizes[] = {3, 2};
  const std::int64_t strides[] = {1, 3};  // in elements: the transpose of two rows of three
  TensorView view;
  view.data = values.data();
  view.dtype = DType::float32;
  view.ndim = 2;
  view.sizes = sizes;
  view.strides = strides;
  view.device = Device::cpu;
  EXPECT_EQ(element_count(view), 6);
  EXPECT_EQ(dtype_name(view.dtype), "float32");
  EXPECT_EQ(dtype_from_name("bfloat16"), DType::bfloat16);
  EXPECT_EQ(dtype_from_name("complex64"), std::nullopt);
  EXPECT_EQ(dtype_size(DType::float64), 8u);
}

// example stat.h: Measure two parts, merge them, ask for statistics
TEST(Reference, Statistics) {
  const Floats a({3, -4}), b({0, NAN});
  RowState state = measure(a.view());
  EXPECT_EQ(derive(Stat::norm, state), 5.0);
  merge(state, measure(b.view(), kDefaultEps, 2));  // with two threads: the same bits
  EXPECT_EQ(state.count, 4);
  EXPECT_EQ(state.finite(), 3);
  EXPECT_TRUE(state.non_finite());
  EXPECT_EQ(derive(Stat::nans, state), 1.0);
  EXPECT_TRUE(std::isnan(derive(Stat::norm, state)));
}

// example stat.h: A state that is an estimate from a sample
TEST(Reference, Estimates) {
  RowState state = measure(Floats({3, -4}).view());
  EXPECT_FALSE(state.is_estimate());
  state.mark_estimate();  // its sums may stand; nobody knows its extremes
  EXPECT_TRUE(state.is_estimate());
  EXPECT_TRUE(is_told(Stat::norm, state));
  EXPECT_EQ(derive(Stat::norm, state), 5.0);
  EXPECT_FALSE(is_told(Stat::max, state));
  EXPECT_TRUE(std::isnan(derive(Stat::max, state)));
}

// example stat.h: The tables of statistics and of the fields of a state
TEST(Reference, TablesOfStatistics) {
  EXPECT_EQ(stat_from_name("absmax"), Stat::absmax);
  EXPECT_EQ(stat_name(Stat::zeros), "zeros");
  EXPECT_EQ(stat_table().size(), kStatCount);
  const StatDefinition& norm = stat_table()[static_cast<std::size_t>(Stat::norm)];
  EXPECT_EQ(norm.type, "float64");
  EXPECT_EQ(norm.empty, "0");
  const StateField<std::int64_t>& first = std::get<0>(kStateFields);
  EXPECT_EQ(first.name, "count");
  EXPECT_EQ(first.law, MergeLaw::add);
}

// example probe.h: Intervals, signs and a digest of one tensor in one pass
TEST(Reference, Probe) {
  const Floats values({-1, 0, 2, NAN});
  ProbeRequest request;
  request.intervals = true;
  request.bounds = {0.0};
  request.signs = Signs::positive;
  request.digest = Digest::crc32;
  const Probe found = probe(values.view(), request);
  EXPECT_EQ(found.intervals, (std::vector<std::int64_t>{2, 2}));  // (-inf, 0], (0, inf) and NaN
  EXPECT_EQ(found.exact_zeros, 1);
  EXPECT_EQ(found.signs, std::vector<std::byte>{std::byte{0b100}});
  EXPECT_EQ(found.digest.size(), 8u);
  EXPECT_EQ(found.state.count, 4);
  EXPECT_EQ(digest_name(Digest::fast64), "fast64");
  EXPECT_EQ(digest_from_name("md5"), Digest::md5);
}

}  // namespace
}  // namespace trainmon
