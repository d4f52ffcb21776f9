// Plain fields, by far the most, are cut out of the text without a copy.
#include "sources/csv_records.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cmath>
#include <limits>

namespace trainmon {
namespace {

constexpr std::string_view kUnclosed = "a quote is never closed";
constexpr std::size_t kChunk = std::size_t{4} << 20;
// A quote that is not closed within so many bytes never is.
constexpr std::size_t kLongestRecord = std::size_t{64} << 20;

bool equals_lower(std::string_view text, std::string_view lower) {
  return std::equal(text.begin(), text.end(), lower.begin(), lower.end(), [](char a, char b) {
    return (a >= 'A' && a <= 'Z' ? static_cast<char>(a - 'A' + 'a') : a) == b;
  });
}

}  // namespace

bool CsvRecords::next() {
  if (at_ >= text_.size()) return false;
  begin_ = at_;
  line_ = next_line_;
  fault_ = {};
  if (!split(begin_)) return true;
  const std::string_view record = text_.substr(begin_, at_ - begin_);
  next_line_ += std::count(record.begin(), record.end(), '\n');
  // Ours quotes what holds one.
  if (record.find('\0') != std::string_view::npos && unquoted_.empty()) {
    fault_ = "a NUL byte is in it";
  }
  if (record.back() != '\n') fault_ = "the line does not end: cut off, or still being written";
  return true;
}

void CsvRecords::give_up_line(std::string_view why) {
  fault_ = why;
  fields_.clear();
  const std::size_t end = text_.find('\n', begin_);
  at_ = end == std::string_view::npos ? text_.size() : end + 1;
  ++next_line_;
}

void CsvRecords::seek(std::size_t begin, std::int64_t line) {
  at_ = begin;
  next_line_ = line;
}

// Sets fields_ and at_; false where the record cannot be told.
bool CsvRecords::split(std::size_t begin) {
  fields_.clear();
  unquoted_.clear();
  std::size_t at = begin;
  while (true) {
    if (at < text_.size() && text_[at] == '"') {
      std::string field;
      for (++at;;) {
        const std::size_t quote = text_.find('"', at);
        if (quote == std::string_view::npos) {
          give_up_line(kUnclosed);
          return false;
        }
        field += text_.substr(at, quote - at);
        at = quote + 1;
        if (at >= text_.size() || text_[at] != '"') break;
        field += '"';
        ++at;
      }
      if (at < text_.size() && text_[at] != ',' && text_[at] != '\n' && text_[at] != '\r') {
        give_up_line("a quoted field goes on after its closing quote");
        return false;
      }
      unquoted_.push_back(std::move(field));
      fields_.push_back({});  // pointed at once unquoted_ no longer moves
    } else {
      const std::size_t end = std::min(text_.find_first_of(",\n", at), text_.size());
      fields_.push_back(text_.substr(at, end - at));
      at = end;
    }
    if (at < text_.size() && text_[at] == ',') {
      ++at;
      continue;
    }
    break;
  }
  if (at < text_.size() && text_[at] == '\r') ++at;  // after a quoted field
  if (at < text_.size()) ++at;
  at_ = at;
  if (!fields_.back().empty() && fields_.back().back() == '\r') fields_.back().remove_suffix(1);
  std::size_t quoted = 0;
  for (std::string_view& field : fields_) {
    if (field.data() == nullptr) field = unquoted_[quoted++];
  }
  return true;
}

CsvFile::CsvFile(std::filesystem::path path) : path_(std::move(path)), file_(open_file(path_)) {
  refill(0, 1);
}

bool CsvFile::next() {
  while (true) {
    const bool is_there = records_.next();
    if (is_at_end_) return is_there;
    if (!is_there) {
      refill(text_.size(), 1);
      continue;
    }
    // A record that touches the end of the text, or looked for a quote up to it, is told again
    // with more of the file. It does not matter whether it is sound.
    const bool is_open =
        records_.fault() == kUnclosed && text_.size() - records_.begin() < kLongestRecord;
    if (records_.end() < text_.size() && !is_open) return true;
    refill(records_.begin(), records_.line());
  }
}

void CsvFile::refill(std::size_t begin, std::int64_t line) {
  text_.erase(0, begin);
  const std::size_t kept = text_.size();
  const std::size_t size = std::max(kChunk, 2 * kept);
  text_.resize(size);
  std::size_t at = kept;
  while (at < size && !is_at_end_) {
    const ssize_t got = ::pread(file_.fd(), text_.data() + at, size - at, read_);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) throw file_error(errno, "cannot read", path_);
    is_at_end_ = got == 0;
    at += static_cast<std::size_t>(got);
    read_ += got;
  }
  text_.resize(at);
  records_ = CsvRecords(text_);
  records_.seek(0, line);
}

bool parse_number(std::string_view text, double& value) {
  if (!text.empty() && text.front() == '+') text.remove_prefix(1);
  const auto result = std::from_chars(text.data(), text.data() + text.size(), value);
  const bool is_whole = result.ptr == text.data() + text.size() && !text.empty();
  if (result.ec == std::errc() && is_whole) return true;
  if (result.ec == std::errc::result_out_of_range && is_whole) {
    // Beyond what a float64 holds: by its exponent either too large or too small.
    const std::size_t exponent = text.find_first_of("eE");
    const bool is_small = exponent != std::string_view::npos && exponent + 1 < text.size() &&
                          text[exponent + 1] == '-';
    value = is_small ? 0.0 : std::numeric_limits<double>::infinity();
    if (text.front() == '-') value = -value;
    return true;
  }
  if (equals_lower(text, "-nan")) {
    value = std::numeric_limits<double>::quiet_NaN();
    return true;
  }
  return false;
}

bool parse_integer(std::string_view text, std::int64_t& value) {
  const auto result = std::from_chars(text.data(), text.data() + text.size(), value);
  return result.ec == std::errc() && result.ptr == text.data() + text.size() && !text.empty();
}

}  // namespace trainmon
