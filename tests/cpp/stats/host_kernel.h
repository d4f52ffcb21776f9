// The arithmetic of the CUDA kernel on the host, in the device's order of summation: threads of a
// block one after the other, lanes of a warp as a tree, chunks merged in groups.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <utility>
#include <vector>

#include "model/merge.h"
#include "stats/cuda/careful.h"
#include "stats/cuda/check_sums.h"
#include "stats/cuda/sums.h"
#include "stats/cuda/work.h"

namespace trainmon::cuda::host {

inline void add(std::uint32_t& into, std::uint32_t from) {
  into += from;
}

// As the threads of a block do: lanes of a warp halve, then the warps.
template <class T>
T sum_of_threads(std::vector<T> thread) {
  using cuda::add;
  using host::add;
  for (std::size_t warp = 0; warp < thread.size(); warp += 32) {
    for (std::size_t distance = 16; distance > 0; distance /= 2) {
      for (std::size_t lane = 0; lane < distance; ++lane) {
        add(thread[warp + lane], thread[warp + lane + distance]);
      }
    }
  }
  constexpr std::size_t kWarps = kThreads / 32;
  for (std::size_t distance = kWarps / 2; distance > 0; distance /= 2) {
    for (std::size_t warp = 0; warp < distance; ++warp) {
      add(thread[32 * warp], thread[32 * (warp + distance)]);
    }
  }
  return thread[0];
}

template <class Each>
auto by_threads(Each&& each) {
  std::vector<decltype(each(0))> all;
  all.reserve(kThreads);
  for (int thread = 0; thread < kThreads; ++thread) all.push_back(each(thread));
  return sum_of_threads(std::move(all));
}

// Any chunk, element by element.
inline RowState careful(const Chunk& chunk, double eps) {
  const Census census = by_threads([&](int t) { return census_of(chunk, t, eps); });
  const std::int64_t finite = chunk.n - census.nans - census.pos_infs - census.neg_infs;
  Centred sums;
  Centred centred;
  std::int32_t exponent = 0;
  if (finite > 0) {
    exponent = exponent_of(std::max(absolute(census.min), absolute(census.max)));
    sums = by_threads([&](int t) { return careful_sums(chunk, t, exponent, 0.0); });
    const double mean = sums.sum / static_cast<double>(finite);
    centred = by_threads([&](int t) { return careful_sums(chunk, t, exponent, mean); });
  }
  return careful_state(census, chunk.n, exponent, sums, centred);
}

// A chunk that is one run of memory of a floating-point type.
template <class Format>
RowState state_of_chunk(const Chunk& chunk, double eps) {
  const std::byte* data = chunk.data + chunk.begin * item_bytes(chunk.dtype);
  const auto sums = by_threads([&](int t) { return sums_of<Format>(data, chunk.n, t, eps); });
  RowState state = state_of(sums, chunk.n);
  const unsigned more = needs<Format>(sums, state);
  if ((more & kCare) != 0) return careful(chunk, eps);
  if ((more & kCentre) != 0) {
    const double mean = state.mean;
    state.m2 = second_moment(
        by_threads([&](int t) { return centred_of<Format>(data, chunk.n, t, mean); }), chunk.n);
  }
  if ((more & kSubnormals) != 0) {
    state.subnormals = by_threads([&](int t) { return subnormals_of<Format>(data, chunk.n, t); });
  }
  return state;
}

inline RowState state_of_chunk(const Chunk& chunk, double eps) {
  if (chunk.gaps != nullptr) return careful(chunk, eps);
  switch (chunk.dtype) {
    case DType::float32:
      return state_of_chunk<Float32>(chunk, eps);
    case DType::bfloat16:
      return state_of_chunk<Bfloat16>(chunk, eps);
    case DType::float16:
      return state_of_chunk<Float16>(chunk, eps);
    case DType::float64:
      return state_of_chunk<Float64>(chunk, eps);
    case DType::float8_e4m3fn:
      return state_of_chunk<Float8E4m3fn>(chunk, eps);
    case DType::float8_e5m2:
      return state_of_chunk<Float8E5m2>(chunk, eps);
    default:
      return careful(chunk, eps);
  }
}

// The states of a group, by the lanes of a warp; lanes without a member have an empty state.
using Lanes = std::array<RowState, kGroup>;

// What every lane of a warp holds after adding across distances 16, 8, ... 1.
template <class T, class Join>
T across(const Lanes& lanes, T RowState::*member, Join join) {
  std::array<T, kGroup> value;
  for (std::size_t i = 0; i < value.size(); ++i) value[i] = lanes[i].*member;
  for (std::size_t distance = kGroup / 2; distance > 0; distance /= 2) {
    const auto before = value;
    for (std::size_t i = 0; i < value.size(); ++i) value[i] = join(before[i], before[i ^ distance]);
  }
  return value[0];
}

inline RowState merged(Lanes lanes) {
  const bool is_ordinary = std::ranges::all_of(
      lanes, [](const RowState& state) { return state.exponent == 0 && is_finite(state.sum); });
  if (!is_ordinary) {
    for (std::size_t distance = kGroup / 2; distance > 0; distance /= 2) {
      for (std::size_t i = 0; i < distance; ++i) merge_states(lanes[i], lanes[i + distance]);
    }
    return lanes[0];
  }
  RowState out = lanes[0];
  each_state_field([&](auto field) {
    if constexpr (field.law == MergeLaw::add) {
      out.*field.member = across(lanes, field.member, [](auto a, auto b) { return a + b; });
    } else if constexpr (field.law == MergeLaw::least) {
      out.*field.member = across(lanes, field.member, lesser_of);
    } else if constexpr (field.law == MergeLaw::greatest) {
      out.*field.member = across(lanes, field.member, greater_of);
    }
  });
  const auto all = static_cast<double>(out.finite());
  out.mean = all > 0.0 ? out.sum / all : 0.0;
  for (RowState& lane : lanes) {
    const auto own = static_cast<double>(lane.finite());
    const double away = lane.mean - out.mean;
    lane.m2 = own > 0.0 ? lane.m2 + own * away * away : 0.0;
  }
  out.m2 = across(lanes, &RowState::m2, [](double a, double b) { return a + b; });
  return out;
}

// The row of a tensor: the states of its chunks, merged by groups until one is left.
inline RowState state_of_tensor(const Entry& entry, const Gaps* gaps, double eps) {
  const std::int64_t each = kChunkBytes / item_bytes(entry.dtype);
  std::vector<RowState> states;
  for (std::int64_t begin = 0; begin < entry.elements; begin += each) {
    states.push_back(state_of_chunk({static_cast<const std::byte*>(entry.data), gaps, entry.dtype,
                                     begin, std::min(each, entry.elements - begin)},
                                    eps));
  }
  while (states.size() > 1) {
    std::vector<RowState> groups;
    for (std::size_t i = 0; i < states.size(); i += kGroup) {
      Lanes lanes = {};
      const std::size_t end = std::min(states.size(), i + kGroup);
      for (std::size_t k = i; k < end; ++k) lanes[k - i] = states[k];
      groups.push_back(merged(lanes));
    }
    states = std::move(groups);
  }
  multiply(states[0], entry.multiplicity);
  return states[0];
}

// What the threads of a block leave, added as they do.
inline const CheckFactors& check_factors() {
  static const CheckFactors factors = [] {
    CheckFactors filled;
    for (int thread = 0; thread < kThreads; ++thread) fill_factors(filled, thread);
    return filled;
  }();
  return factors;
}

template <class Format>
CheckSums check_of_vectors(const Chunk& chunk, std::int64_t first) {
  constexpr std::int64_t kItem = 16 / Format::kPerVector;
  const auto at = static_cast<std::uint64_t>((first + chunk.begin) * kItem);
  BlockFactors blocks;
  for (int i = 0; i < kChunkBlocks; ++i) blocks.of[i] = block_factor(at, i);
  CheckSums sums = by_threads([&](int thread) {
    CheckAccumulator<Format> out(check_factors(), blocks, at,
                                 at + static_cast<std::uint64_t>(thread) * 16);
    const std::byte* data = chunk.data + chunk.begin * kItem;
    for (std::int64_t v = thread; v < chunk.n / Format::kPerVector; v += kThreads) {
      std::uint32_t word[4];
      std::memcpy(word, data + v * 16, 16);
      out.vector(word);
    }
    return out.sums();
  });
  const std::int64_t taken = chunk.n / Format::kPerVector * Format::kPerVector;
  if (taken < chunk.n) {
    std::vector<CheckSums> lanes;
    for (int lane = 0; lane < 32; ++lane) {
      lanes.push_back(check_elements(chunk, check_factors(), first, taken, lane));
    }
    lanes.resize(kThreads, CheckSums{});
    cuda::add(sums, sum_of_threads(lanes));
  }
  return sums;
}

inline CheckSums check_of_chunk(const Chunk& chunk, std::int64_t first) {
  if (chunk.gaps == nullptr && first * item_bytes(chunk.dtype) % 16 == 0) {
    switch (chunk.dtype) {
      case DType::float32:
        return check_of_vectors<Float32>(chunk, first);
      case DType::bfloat16:
        return check_of_vectors<Bfloat16>(chunk, first);
      case DType::float16:
        return check_of_vectors<Float16>(chunk, first);
      case DType::float64:
        return check_of_vectors<Float64>(chunk, first);
      case DType::float8_e4m3fn:
        return check_of_vectors<Float8E4m3fn>(chunk, first);
      case DType::float8_e5m2:
        return check_of_vectors<Float8E5m2>(chunk, first);
      default:
        break;
    }
  }
  return by_threads(
      [&](int thread) { return check_elements(chunk, check_factors(), first, 0, thread); });
}

// Chunks merged as their states are.
inline CheckSums check_of_tensor(const Entry& entry, const Gaps* gaps, std::int64_t first) {
  const std::int64_t each = kChunkBytes / item_bytes(entry.dtype);
  std::vector<CheckSums> sums;
  for (std::int64_t begin = 0; begin < entry.elements; begin += each) {
    sums.push_back(check_of_chunk({static_cast<const std::byte*>(entry.data), gaps, entry.dtype,
                                   begin, std::min(each, entry.elements - begin)},
                                  first));
  }
  while (sums.size() > 1) {
    std::vector<CheckSums> groups;
    for (std::size_t i = 0; i < sums.size(); i += kGroup) {
      std::vector<CheckSums> lanes(
          sums.begin() + static_cast<std::ptrdiff_t>(i),
          sums.begin() + static_cast<std::ptrdiff_t>(std::min(sums.size(), i + kGroup)));
      lanes.resize(kThreads, CheckSums{});
      groups.push_back(sum_of_threads(std::move(lanes)));
    }
    sums = std::move(groups);
  }
  return sums[0];
}

}  // namespace trainmon::cuda::host
