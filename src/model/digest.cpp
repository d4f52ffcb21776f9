// Names of digests.
#include <algorithm>
#include <array>

#include "trainmon/probe.h"

namespace trainmon {
namespace {

constexpr std::array<std::string_view, 4> kNames = {"none", "md5", "crc32", "fast64"};

}  // namespace

std::string_view digest_name(Digest digest) {
  return kNames[static_cast<std::size_t>(digest)];
}

std::optional<Digest> digest_from_name(std::string_view name) {
  const auto found = std::ranges::find(kNames, name);
  if (found == kNames.end()) return std::nullopt;
  return static_cast<Digest>(found - kNames.begin());
}

}  // namespace trainmon
