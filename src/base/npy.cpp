// A .npy head is a magic, a version, a length and a Python dict of three keys; nothing else is
// read.
#include "base/npy.h"

#include <charconv>
#include <stdexcept>
#include <utility>

#include "base/sizes.h"
#include "base/text.h"

namespace trainmon {
namespace {

constexpr std::string_view kNpyMagic = "\x93NUMPY";
constexpr std::size_t kAlignment = 64;
// numpy.save leaves room for the first size to grow to so many digits.
constexpr std::size_t kGrowth = 21;

[[noreturn]] void refuse(const std::string& what) {
  throw std::runtime_error(what);
}

// The dict of a head, as NumPy prints it: keys in any order, either quote, a comma at the end or
// not.
class HeadParser {
 public:
  explicit HeadParser(std::string_view text) : text_(text) {}

  NpyHead parse() {
    NpyHead head;
    bool has_descr = false, has_order = false, has_shape = false;
    expect('{');
    while (!accept('}')) {
      const std::string key = quoted();
      expect(':');
      if (key == "descr" && !has_descr) {
        if (peek() == '[') refuse("its elements are records, not numbers");
        head.descr = quoted();
        has_descr = true;
      } else if (key == "fortran_order" && !has_order) {
        head.fortran_order = truth();
        has_order = true;
      } else if (key == "shape" && !has_shape) {
        head.sizes = tuple();
        has_shape = true;
      } else {
        refuse("the key '" + printable(key) + "' of its head is not expected");
      }
      if (!accept(',') && peek() != '}') damaged();
    }
    if (peek() != '\0' || at_ != text_.size()) damaged();
    if (!has_descr || !has_order || !has_shape) refuse("its head lacks a key");
    return head;
  }

 private:
  [[noreturn]] static void damaged() { refuse("its head is damaged"); }

  // The next character after blanks; NUL at the end.
  char peek() {
    while (at_ < text_.size() && (text_[at_] == ' ' || text_[at_] == '\n')) ++at_;
    return at_ < text_.size() ? text_[at_] : '\0';
  }
  bool accept(char wanted) {
    if (peek() != wanted || at_ == text_.size()) return false;
    ++at_;
    return true;
  }
  void expect(char wanted) {
    if (!accept(wanted)) damaged();
  }
  std::string quoted() {
    const char quote = peek();
    if (quote != '\'' && quote != '"') damaged();
    const std::size_t end = text_.find(quote, at_ + 1);
    if (end == std::string_view::npos) damaged();
    const std::string_view inside = text_.substr(at_ + 1, end - at_ - 1);
    at_ = end + 1;
    return std::string(inside);
  }
  bool truth() {
    peek();
    for (const auto& [word, value] : {std::pair{"True", true}, std::pair{"False", false}}) {
      if (!text_.substr(at_).starts_with(word)) continue;
      at_ += std::string_view(word).size();
      return value;
    }
    damaged();
  }
  std::vector<std::int64_t> tuple() {
    std::vector<std::int64_t> sizes;
    expect('(');
    while (!accept(')')) {
      peek();
      std::int64_t size = 0;
      const char* const begin = text_.data() + at_;
      const auto [end, error] = std::from_chars(begin, text_.data() + text_.size(), size);
      if (error != std::errc() || size < 0) damaged();
      at_ += static_cast<std::size_t>(end - begin);
      sizes.push_back(size);
      if (!accept(',') && peek() != ')') damaged();
    }
    return sizes;
  }

  std::string_view text_;
  std::size_t at_ = 0;
};

}  // namespace

std::string npy_head(std::string_view descr, std::span<const std::int64_t> sizes) {
  std::string dict = "{'descr': '" + std::string(descr) + "', 'fortran_order': False, 'shape': (";
  for (std::size_t i = 0; i < sizes.size(); ++i) {
    if (i > 0) dict += ' ';
    dict += std::to_string(sizes[i]);
    if (i + 1 < sizes.size() || i == 0) dict += ',';
  }
  dict += "), }";
  if (!sizes.empty()) dict.append(kGrowth - std::to_string(sizes[0]).size(), ' ');
  const std::size_t before = kNpyMagic.size() + 4;
  dict.append(kAlignment - (before + dict.size() + 1) % kAlignment, ' ');
  dict += '\n';
  std::string head(kNpyMagic);
  head += '\x01';
  head += '\x00';
  head += static_cast<char>(dict.size() & 0xFF);
  head += static_cast<char>(dict.size() >> 8);
  return head + dict;
}

NpyHead read_npy_head(std::span<const std::byte> bytes) {
  const std::string_view text(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  if (!text.starts_with(kNpyMagic.substr(0, text.size())) || text.empty())
    refuse("it is no .npy file");
  if (text.size() < kNpyMagic.size() + 2) refuse("it is cut short in its head");
  const auto at = [&](std::size_t i) { return static_cast<std::size_t>(bytes[i]); };
  const std::size_t major = at(6), minor = at(7);
  if (major < 1 || major > 3 || minor != 0) {
    refuse("its .npy version " + std::to_string(major) + "." + std::to_string(minor) +
           " is not known");
  }
  const std::size_t width = major == 1 ? 2 : 4;
  const std::size_t begin = kNpyMagic.size() + 2 + width;
  if (text.size() < begin) refuse("it is cut short in its head");
  std::size_t length = 0;
  for (std::size_t i = 0; i < width; ++i) length |= at(kNpyMagic.size() + 2 + i) << (8 * i);
  if (length > text.size() - begin) refuse("it is cut short in its head");
  NpyHead head = HeadParser(text.substr(begin, length)).parse();
  head.data_offset = begin + length;
  if (!count_of(head.sizes)) refuse("its sizes are too large");
  return head;
}

}  // namespace trainmon
