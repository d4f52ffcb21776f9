// Numbers one after another, the signs last; little-endian, as everything of ours.
#include "model/probe_payload.h"

#include <bit>
#include <cstring>

#include "model/state_fields.h"

namespace trainmon {
namespace {

static_assert(std::endian::native == std::endian::little);

// What a payload begins with since version 2. Version 1 begins with a count, which is not negative:
// as an i64 this is, so neither is taken for the other.
constexpr std::uint64_t kMark = 0xff45424f52504d54;  // "TMPROBE" and 0xff
constexpr std::uint32_t kVersion = 2;
constexpr std::size_t kLengthAt = sizeof kMark + sizeof kVersion;
// The fields of version 1, all there were: the columns between these, in the order of their
// numbers.
constexpr std::uint8_t kFirstColumn = 7;
constexpr std::uint8_t kLastColumn = 20;
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

// A field as the eight bytes that it has since version 2, and back.
template <typename T>
std::uint64_t wide_bits(T value) {
  if constexpr (std::is_floating_point_v<T>) {
    return std::bit_cast<std::uint64_t>(value);
  } else {
    return static_cast<std::uint64_t>(std::int64_t{value});
  }
}
template <typename T>
T from_bits(std::uint64_t bits) {
  if constexpr (std::is_floating_point_v<T>) {
    return std::bit_cast<T>(bits);
  } else {
    return static_cast<T>(bits);
  }
}

void put_state(Writer& to, const RowState& state) {
  to.number(static_cast<std::uint32_t>(kStateFieldCount));
  each_state_field([&](auto field) {
    to.number(field.column);
    to.number(wide_bits(state.*field.member));
  });
}

// Fields that we do not know are passed over, those that are not there stay as in RowState{}.
void take_state(Reader& from, RowState& state) {
  for (auto fields = from.number<std::uint32_t>(); fields > 0 && from.good(); --fields) {
    const auto column = from.number<std::uint8_t>();
    const auto bits = from.number<std::uint64_t>();
    each_state_field([&](auto field) {
      using Type = typename decltype(field)::Type;
      if (field.column == column) state.*field.member = from_bits<Type>(bits);
    });
  }
}

void take_state_of_version_1(Reader& from, RowState& state) {
  for (std::uint8_t column = kFirstColumn; column <= kLastColumn; ++column) {
    each_state_field([&](auto field) {
      using Type = typename decltype(field)::Type;
      if (field.column == column) state.*field.member = from.number<Type>();
    });
  }
}

}  // namespace

std::vector<std::byte> probe_payload(std::span<const std::int64_t> sizes, int planes,
                                     const Probe& probe) {
  std::vector<std::byte> bytes;
  bytes.reserve(probe.signs.size() + 384 + 8 * (sizes.size() + probe.intervals.size()));
  Writer to(bytes);
  to.number(kMark);
  to.number(kVersion);
  to.number(std::uint64_t{0});  // the length, which is written at the end
  put_state(to, probe.state);
  to.number(static_cast<std::uint32_t>(planes));
  to.list(sizes);
  to.list(probe.intervals);
  to.number(probe.exact_zeros);
  to.number(static_cast<std::uint64_t>(probe.digest.size()));
  to.raw(std::as_bytes(std::span(probe.digest)));
  to.raw(probe.signs);
  const std::uint64_t length = bytes.size();
  std::memcpy(bytes.data() + kLengthAt, &length, sizeof length);
  return bytes;
}

std::optional<ProbePayload> read_probe_payload(std::span<const std::byte> bytes) {
  ProbePayload found;
  Reader from(bytes);
  std::uint64_t mark = 0;
  if (bytes.size() >= sizeof mark) std::memcpy(&mark, bytes.data(), sizeof mark);
  if (mark == kMark) {
    from.raw(sizeof mark);
    const auto version = from.number<std::uint32_t>();
    const auto length = from.number<std::uint64_t>();
    if (version != kVersion || length != bytes.size()) return std::nullopt;
    take_state(from, found.probe.state);
  } else {
    take_state_of_version_1(from, found.probe.state);
  }
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
