// Head, planes, checksum; a reader believes no number of the head before the file's length bears it
// out.
#include "base/sign_file.h"

#include <cstring>
#include <stdexcept>

#include "base/crc32c.h"
#include "base/sizes.h"

namespace trainmon {
namespace {

constexpr std::string_view kSignMagic("TMSIGN\0\1", 8);
constexpr std::size_t kMostSizes = 64;
constexpr std::size_t kChecksumBytes = 4;

template <typename T>
void append(std::vector<std::byte>& file, T value) {
  const std::size_t at = file.size();
  file.resize(at + sizeof value);
  std::memcpy(file.data() + at, &value, sizeof value);
}

template <typename T>
T number_at(std::span<const std::byte> bytes, std::size_t at) {
  T value;
  std::memcpy(&value, bytes.data() + at, sizeof value);
  return value;
}

std::string_view text_of(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

[[noreturn]] void refuse(const char* what) {
  throw std::runtime_error(what);
}

std::size_t plane_bytes(std::int64_t count) {
  return static_cast<std::size_t>(count / 8 + (count % 8 != 0 ? 1 : 0));
}

bool has_unused_bits(std::span<const std::byte> plane, std::int64_t count) {
  return count % 8 != 0 && static_cast<unsigned>(plane.back()) >> (count % 8) != 0;
}

}  // namespace

std::vector<std::byte> sign_file(std::span<const std::int64_t> sizes, int planes,
                                 std::span<const std::byte> signs) {
  const std::optional<std::int64_t> count = count_of(sizes);
  if (!count || sizes.size() > kMostSizes || planes < 1 || planes > 2 ||
      signs.size() != static_cast<std::size_t>(planes) * plane_bytes(*count)) {
    throw std::invalid_argument("signs: " + std::to_string(signs.size()) + " bytes are not " +
                                std::to_string(planes) + " planes of these sizes");
  }
  std::vector<std::byte> file;
  file.reserve(kSignMagic.size() + 8 + 8 * sizes.size() + signs.size() + kChecksumBytes);
  const auto* const magic = reinterpret_cast<const std::byte*>(kSignMagic.data());
  file.assign(magic, magic + kSignMagic.size());
  append(file, static_cast<std::uint32_t>(planes));
  append(file, static_cast<std::uint32_t>(sizes.size()));
  for (const std::int64_t size : sizes) append(file, size);
  file.insert(file.end(), signs.begin(), signs.end());
  append(file, crc32c(text_of(file)));
  return file;
}

SignFile read_sign_file(std::span<const std::byte> bytes) {
  if (bytes.empty() || !text_of(bytes).starts_with(kSignMagic.substr(0, bytes.size()))) {
    refuse("it is no .sign file");
  }
  std::size_t at = kSignMagic.size();
  if (bytes.size() < at + 8) refuse("it is cut short in its head");
  const auto planes = number_at<std::uint32_t>(bytes, at);
  const auto dimensions = number_at<std::uint32_t>(bytes, at + 4);
  at += 8;
  if (planes < 1 || planes > 2 || dimensions > kMostSizes) refuse("its head is damaged");
  if (bytes.size() - at < 8 * std::size_t{dimensions}) refuse("it is cut short in its head");
  SignFile file;
  for (std::uint32_t i = 0; i < dimensions; ++i, at += 8) {
    file.sizes.push_back(number_at<std::int64_t>(bytes, at));
  }
  const std::optional<std::int64_t> count = count_of(file.sizes);
  if (!count) refuse("its head is damaged");
  file.count = *count;
  const std::size_t plane = plane_bytes(file.count);
  const std::size_t left = bytes.size() - at;
  if (left < kChecksumBytes || (left - kChecksumBytes) / planes < plane) refuse("it is cut short");
  if (left != planes * plane + kChecksumBytes) refuse("it is longer than its sizes say");
  const std::size_t end = bytes.size() - kChecksumBytes;
  if (crc32c(text_of(bytes.first(end))) != number_at<std::uint32_t>(bytes, end)) {
    refuse("it is damaged: its checksum is another");
  }
  for (std::uint32_t i = 0; i < planes; ++i, at += plane) {
    file.planes.push_back(bytes.subspan(at, plane));
    if (has_unused_bits(file.planes.back(), file.count)) refuse("bits beyond its last element");
  }
  return file;
}

}  // namespace trainmon
