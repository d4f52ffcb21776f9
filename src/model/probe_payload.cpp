// Fields one after another, the signs last; little-endian, as everything of ours.
#include "model/probe_payload.h"

#include <array>
#include <bit>
#include <cstring>

namespace trainmon {
namespace {

static_assert(std::endian::native == std::endian::little);

constexpr std::uint64_t kMostDims = 64;
constexpr std::uint64_t kMostDigest = 64;

class Writer {
 public:
  explicit Writer(std::vector<std::byte>& bytes) : bytes_(bytes) {}
  template <typename T>
  void number(T value) {
    raw(std::as_bytes(std::span(&value, 1)));
  }
  void list(std::span<const std::int64_t> numbers) {
    number(static_cast<std::uint64_t>(numbers.size()));
    raw(std::as_bytes(numbers));
  }
  void raw(std::span<const std::byte> part) {
    bytes_.insert(bytes_.end(), part.begin(), part.end());
  }

 private:
  std::vector<std::byte>& bytes_;
};

// Reads nothing more once there was too little.
class Reader {
 public:
  explicit Reader(std::span<const std::byte> bytes) : rest_(bytes) {}
  template <typename T>
  T number() {
    T value{};
    const std::span<const std::byte> part = raw(sizeof value);
    if (!part.empty()) std::memcpy(&value, part.data(), sizeof value);
    return value;
  }
  std::vector<std::int64_t> list(std::uint64_t most) {
    const auto count = number<std::uint64_t>();
    if (count > most || count * sizeof(std::int64_t) > rest_.size()) good_ = false;
    std::vector<std::int64_t> numbers(good_ ? count : 0);
    for (std::int64_t& one : numbers) one = number<std::int64_t>();
    return numbers;
  }
  std::span<const std::byte> raw(std::size_t size) {
    if (!good_ || size > rest_.size()) {
      good_ = false;
      return {};
    }
    const std::span<const std::byte> part = rest_.first(size);
    rest_ = rest_.subspan(size);
    return part;
  }
  std::size_t left() const { return rest_.size(); }
  bool good() const { return good_; }

 private:
  std::span<const std::byte> rest_;
  bool good_ = true;
};

// The fields of a state, in the order of their declaration.
template <typename State>
auto counts_of(State& s) {
  return std::array{&s.count, &s.nans, &s.pos_infs, &s.neg_infs, &s.zeros, &s.subnormals};
}
template <typename State>
auto values_of(State& s) {
  return std::array{&s.sum, &s.mean, &s.m2, &s.sum_sq, &s.min, &s.max, &s.absmax};
}

}  // namespace

std::vector<std::byte> probe_payload(std::span<const std::int64_t> sizes, int planes,
                                     const Probe& probe) {
  std::vector<std::byte> bytes;
  bytes.reserve(probe.signs.size() + 256 + 8 * (sizes.size() + probe.intervals.size()));
  Writer to(bytes);
  for (const auto* one : counts_of(probe.state)) to.number(*one);
  for (const auto* one : values_of(probe.state)) to.number(*one);
  to.number(probe.state.exponent);
  to.number(static_cast<std::uint32_t>(planes));
  to.list(sizes);
  to.list(probe.intervals);
  to.number(probe.exact_zeros);
  to.number(static_cast<std::uint64_t>(probe.digest.size()));
  to.raw(std::as_bytes(std::span(probe.digest)));
  to.raw(probe.signs);
  return bytes;
}

std::optional<ProbePayload> read_probe_payload(std::span<const std::byte> bytes) {
  ProbePayload found;
  Reader from(bytes);
  for (auto* one : counts_of(found.probe.state)) *one = from.number<std::int64_t>();
  for (auto* one : values_of(found.probe.state)) *one = from.number<double>();
  found.probe.state.exponent = from.number<std::int32_t>();
  const auto planes = from.number<std::uint32_t>();
  found.sizes = from.list(kMostDims);
  found.probe.intervals = from.list(bytes.size());
  found.probe.exact_zeros = from.number<std::int64_t>();
  const auto digest = from.number<std::uint64_t>();
  if (!from.good() || planes > 2 || digest > kMostDigest) return std::nullopt;
  const std::span<const std::byte> text = from.raw(digest);
  found.probe.digest.assign(reinterpret_cast<const char*>(text.data()), text.size());
  found.planes = static_cast<int>(planes);
  const std::int64_t count = found.probe.state.count;
  if (!from.good() || count < 0) return std::nullopt;
  const std::uint64_t plane = static_cast<std::uint64_t>(count) / 8 + (count % 8 != 0 ? 1 : 0);
  if (from.left() != plane * planes) return std::nullopt;
  found.signs = from.raw(from.left());
  return found;
}

}  // namespace trainmon
