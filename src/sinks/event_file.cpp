// Fields by their numbers in TensorFlow's event.proto, summary.proto, histogram.proto,
// tensor.proto.
#include "sinks/event_file.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <limits>

#include "base/crc32c.h"
#include "base/failpoint.h"
#include "base/text.h"
#include "model/histogram.h"

namespace trainmon {
namespace {

constexpr std::size_t kLongEvent = std::size_t{1} << 20;

enum Wire : std::uint8_t { varint = 0, fixed64 = 1, bytes = 2, fixed32 = 5 };
constexpr char key(unsigned field, Wire wire) {
  return static_cast<char>(field << 3 | wire);
}

template <typename T>
void append_fixed(std::string& out, T value) {
  static_assert(std::endian::native == std::endian::little);
  std::array<char, sizeof(T)> raw;
  std::memcpy(raw.data(), &value, sizeof(T));
  out.append(raw.data(), raw.size());
}

void append_varint(std::string& out, std::uint64_t value) {
  while (value >= 0x80) {
    out += static_cast<char>(value | 0x80);
    value >>= 7;
  }
  out += static_cast<char>(value);
}

std::size_t varint_size(std::uint64_t value) {
  return static_cast<std::size_t>(std::bit_width(value | 1) + 6) / 7;
}

void append_bytes(std::string& out, unsigned field, std::string_view content) {
  out += key(field, Wire::bytes);
  append_varint(out, content.size());
  out += content;
}

void append_double(std::string& out, unsigned field, double value) {
  out += key(field, Wire::fixed64);
  append_fixed(out, value);
}

bool is_ascii(std::string_view text) {
  return std::all_of(text.begin(), text.end(), [](char c) { return (c & 0x80) == 0; });
}

std::string as_utf8(std::string_view text) {
  std::string out;
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t length = decode_utf8(text, at).length;
    out += length == 0 ? std::string_view("\xEF\xBF\xBD") : text.substr(at, length);
    at += std::max<std::size_t>(length, 1);
  }
  return out;
}

std::uint32_t masked(std::uint32_t crc) {
  return std::rotr(crc, 15) + 0xA282EAD8u;
}

float as_float(double value) {
  constexpr double kMost = std::numeric_limits<float>::max();
  if (std::isfinite(value)) value = std::clamp(value, -kMost, kMost);
  return static_cast<float>(value);
}

void append_record(std::string& out, std::string_view event, std::string_view rest) {
  const std::size_t start = out.size();
  append_fixed(out, static_cast<std::uint64_t>(event.size() + rest.size()));
  append_fixed(out, masked(crc32c(std::string_view(out).substr(start))));
  out += event;
  out += rest;
  append_fixed(out, masked(crc32c(std::string_view(out).substr(start + 12))));
}

std::string event_of(double wall_time, std::int64_t step) {
  std::string event;
  append_double(event, 1, wall_time);
  event += key(2, Wire::varint);
  append_varint(event, static_cast<std::uint64_t>(step));
  return event;
}

std::string host_name() {
  std::array<char, 256> name{};
  if (::gethostname(name.data(), name.size() - 1) != 0) return "host";
  std::string text = name.data();
  for (char& c : text) {
    const bool plain = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9');
    if (!plain && c != '-') c = '_';
  }
  return text.empty() ? "host" : text;
}

}  // namespace

void EventRecords::version(double wall_time) {
  std::string event;
  append_double(event, 1, wall_time);
  append_bytes(event, 3, "brain.Event:2");
  append_record(bytes_, event, "");
}

void EventRecords::session_start(double wall_time, std::int64_t step) {
  constexpr std::array<char, 2> kStart = {key(1, Wire::varint), 1};
  std::string event = event_of(wall_time, step);
  append_bytes(event, 7, {kStart.data(), kStart.size()});
  append_record(bytes_, event, "");
}

void EventRecords::begin(double wall_time, std::int64_t step) {
  values_.clear();
  wall_time_ = wall_time;
  step_ = step;
}

void EventRecords::end() {
  if (values_.empty()) return;
  std::string event = event_of(wall_time_, step_);
  event += key(5, Wire::bytes);
  append_varint(event, values_.size());
  append_record(bytes_, event, values_);
  values_.clear();
}

void EventRecords::value(std::string_view tag, std::string_view content) {
  std::string clean;
  if (!is_ascii(tag)) tag = clean = as_utf8(tag);
  const std::size_t size = 1 + varint_size(tag.size()) + tag.size() + content.size();
  values_ += key(1, Wire::bytes);
  append_varint(values_, size);
  append_bytes(values_, 1, tag);
  values_ += content;
  if (values_.size() >= kLongEvent) end();
}

void EventRecords::scalar(std::string_view tag, double number) {
  std::array<char, 5> content;
  const float narrow = as_float(number);
  content[0] = key(2, Wire::fixed32);
  std::memcpy(content.data() + 1, &narrow, sizeof narrow);
  value(tag, {content.data(), content.size()});
}

void EventRecords::histogram(std::string_view tag, const Histogram& histogram) {
  const std::size_t bins = histogram.bins.size();
  const double width =
      (histogram.high - histogram.low) / static_cast<double>(std::max<std::size_t>(bins, 1));
  double count = 0.0;
  double sum = 0.0;
  double squares = 0.0;
  std::string limits;
  std::string counts;
  for (std::size_t i = 0; i < bins; ++i) {
    const double left = histogram.low + width * static_cast<double>(i);
    const double right = i + 1 == bins ? histogram.high : left + width;
    const auto in_bin = static_cast<double>(histogram.bins[i]);
    const double middle = (left + right) / 2;
    count += in_bin;
    sum += in_bin * middle;
    squares += in_bin * middle * middle;
    append_fixed(limits, right);
    append_fixed(counts, in_bin);
  }
  std::string proto;
  append_double(proto, 1, histogram.low);
  append_double(proto, 2, histogram.high);
  append_double(proto, 3, count);
  append_double(proto, 4, sum);
  append_double(proto, 5, squares);
  append_bytes(proto, 6, limits);
  append_bytes(proto, 7, counts);
  content_.clear();
  append_bytes(content_, 5, proto);
  value(tag, content_);
}

void EventRecords::text(std::string_view tag, std::string_view text) {
  constexpr std::array<char, 2> kString = {key(1, Wire::varint), 7};
  constexpr std::array<char, 4> kOneElement = {key(2, Wire::bytes), 2, key(1, Wire::varint), 1};
  std::string tensor(kString.data(), kString.size());
  append_bytes(tensor, 2, {kOneElement.data(), kOneElement.size()});
  append_bytes(tensor, 8, as_utf8(text));
  std::string plugin;
  append_bytes(plugin, 1, "text");
  std::string metadata;
  append_bytes(metadata, 1, plugin);
  constexpr std::array<char, 2> kTensors = {key(4, Wire::varint), 2};
  metadata.append(kTensors.data(), kTensors.size());
  content_.clear();
  append_bytes(content_, 8, tensor);
  append_bytes(content_, 9, metadata);
  value(tag, content_);
}

std::string event_file_name(std::int64_t unix_seconds, int restart, int number) {
  static const std::string host = host_name();
  std::array<char, 64> numbers;
  std::snprintf(numbers.data(), numbers.size(), "events.out.tfevents.%010lld.%04d.",
                static_cast<long long>(unix_seconds), restart);
  std::string name = numbers.data() + host + "." + std::to_string(::getpid());
  if (number > 0) {
    std::snprintf(numbers.data(), numbers.size(), ".%04d", number);
    name += numbers.data();
  }
  return name;
}

void EventFile::create(const std::filesystem::path& path, double wall_time) {
  file_.close();
  EventRecords records;
  records.version(wall_time);
  path_ = path;  // nothing but the write may fail once the file is there
  file_ = create_file(path);
  size_ = 0;
  try {
    append(records.bytes());
  } catch (...) {
    ::unlink(path.c_str());  // rather none than an empty one
    throw;
  }
}

void EventFile::append(std::string_view records) {
  try {
    write_at(file_, size_, records, path_);
  } catch (const SinkError& error) {
    const bool is_cut = failpoint("event_file.truncate").error == 0 && cut_file(file_, size_);
    // A file at its size limit can never grow again.
    if (!is_cut || error.reason() == "file_limit" || size_ == 0) file_.close();
    throw;
  }
  size_ += static_cast<std::int64_t>(records.size());
}

}  // namespace trainmon
