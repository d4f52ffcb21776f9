#include "detect/input_calls.h"

#include <algorithm>
#include <functional>
#include <map>
#include <string_view>
#include <tuple>
#include <utility>

#include "detect/evidence.h"

namespace trainmon::detect {
namespace {

std::uint64_t hash_of(std::string_view text) {  // FNV-1a
  std::uint64_t hash = 0xCBF29CE484222325u;
  for (const char c : text) {
    hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001B3u;
  }
  return hash;
}

// More are taken for so many.
constexpr std::int32_t kMostForwards = 16;

}  // namespace

std::optional<LastGiven::Given> LastGiven::note(std::uint64_t bits, std::int64_t step) {
  const Given now{calls_++, step};
  std::optional<Given> before = find(bits);
  given_.insert_or_assign(bits, now);
  order_.push_back(bits);
  if (order_.size() <= most_) return before;
  const auto oldest = given_.find(order_.front());
  const bool was_given_since =
      oldest->second.number > now.number - static_cast<std::int64_t>(most_);
  if (!was_given_since) given_.erase(oldest);
  order_.pop_front();
  return before;
}

std::optional<LastGiven::Given> LastGiven::find(std::uint64_t bits) const {
  const auto known = given_.find(bits);
  return known == given_.end() ? std::nullopt : std::optional(known->second);
}

std::vector<InputCall> calls_of(const std::vector<Input>& rows) {
  const auto place = [](const auto& one) {
    return std::tuple(one.rank, one.chunk, one.call, one.accum);
  };
  std::vector<const Input*> sorted;
  sorted.reserve(rows.size());
  for (const Input& one : rows) sorted.push_back(&one);
  std::ranges::sort(sorted, {}, [&](const Input* one) {
    return std::tuple_cat(place(*one), std::tuple(one->seq));
  });
  std::vector<InputCall> calls;
  bool is_known = true;    // whether all tensors of the call have a fingerprint
  std::vector<bool> vary;  // by call
  for (const Input* one : sorted) {
    if (calls.empty() || place(calls.back()) != place(*one)) {
      calls.push_back({.rank = one->rank,
                       .chunk = one->chunk,
                       .accum = one->accum,
                       .call = one->call,
                       .seq = one->seq,
                       .is_of_whole_batch = one->is_of_whole_batch,
                       .is_unrelated = one->is_unrelated});
      is_known = true;
      vary.push_back(false);
    }
    InputCall& call = calls.back();
    if (one->entropy) {
      call.entropies.emplace_back(one->element, *one->entropy);
      continue;
    }
    is_known = is_known && one->fingerprint && !one->is_part_of_call;
    if (!is_known) {
      call.bits.reset();
      continue;
    }
    vary.back() = vary.back() || !one->is_constant;
    call.bits = call.bits.value_or(0) + mixed(hash_of(one->element) ^ mixed(*one->fingerprint));
  }
  for (std::size_t i = 0; i < calls.size(); ++i) {
    if (!vary[i]) calls[i].bits.reset();
  }
  const auto model = [](const InputCall& one) { return std::pair(one.rank, one.chunk); };
  std::map<std::pair<std::int32_t, std::int32_t>, std::int32_t> forwards;
  for (const InputCall& call : calls) {  // ascending
    forwards[model(call)] = std::min(call.call, kMostForwards - 1) + 1;
  }
  for (InputCall& call : calls) call.forwards = forwards[model(call)];
  return calls;
}

}  // namespace trainmon::detect
