// Members of rows and series from what files hold of them.
#pragma once

#include <cmath>
#include <concepts>
#include <string>
#include <string_view>
#include <utility>

#include "model/wide_row.h"
#include "read/sqlite_answer.h"
#include "sources/enum_names.h"
#include "sources/kept_shapes.h"

namespace trainmon {

// Sets a member from its text. Where that is empty the member stays as it is: not known. False: the
// text says nothing that belongs there.
inline bool set_member(std::string& member, std::string_view text, KeptShapes&) {
  member = text;
  return true;
}
template <typename Enum, typename Name>
bool set_enumerator(Enum& member, std::string_view text, Enum last, const Name& name) {
  if (text.empty()) return true;
  const std::optional<Enum> found = enum_from_name(text, last, name);
  member = found.value_or(member);
  return found.has_value();
}
inline bool set_member(Fate& member, std::string_view text, KeptShapes&) {
  return set_enumerator(member, text, Fate::unknown, fate_name);
}
inline bool set_member(DType& member, std::string_view text, KeptShapes&) {
  return set_enumerator(member, text, DType::bool8, dtype_name);
}
inline bool set_member(Replication& member, std::string_view text, KeptShapes&) {
  return set_enumerator(member, text, Replication::independent, replication_name);
}
inline bool set_member(const Shape*& member, std::string_view text, KeptShapes& shapes) {
  return shapes.find(text, member);
}
inline bool set_member(std::optional<Fingerprint>& member, std::string_view text, KeptShapes&) {
  member = fingerprint_from(text);
  return member || text.empty();
}

// Whether a number of a file fits a member. Those of 64 bits are kept bit by bit.
template <std::integral T>
bool fits(std::int64_t value) {
  return sizeof(T) == sizeof value || std::in_range<T>(value);
}

// Why a number is no count; empty: it is one, or NaN, which stands for one that is not known.
// Tables carry counts as float64, so one whose digits are lost there is none.
inline std::string_view count_fault(double value) {
  constexpr double kBeyond = 9223372036854775808.0;  // 2^63
  if (std::isnan(value)) return {};
  if (value < 0) return "is negative";
  if (value >= kBeyond) return "is too large";
  return value == std::floor(value) ? std::string_view() : "is no whole number";
}
inline std::string_view count_fault(std::int64_t value) {
  const auto kept = static_cast<double>(value);
  const std::string_view fault = count_fault(kept);
  return fault.empty() && static_cast<std::int64_t>(kept) != value ? "is too large" : fault;
}

// Members from the columns of an answer, one after the other. What does not belong there is told as
// a fault, the first one alone.
class SqliteMembers {
 public:
  SqliteMembers(const SqliteAnswer& answer, int first) : answer_(answer), at_(first) {}

  template <typename T>
  void read(T& member, KeptShapes& shapes) {
    const int at = at_++;
    if constexpr (std::integral<T>) {
      const std::int64_t value = answer_.integer(at);
      if (!answer_.is_integer(at)) return tell(column(at) + " is no whole number");
      if (!fits<T>(value)) return tell(column(at) + " is out of its range");
      member = static_cast<T>(value);
    } else if constexpr (std::floating_point<T>) {
      const int type = answer_.type(at);
      member = type == SQLITE_NULL ? std::nan("") : answer_.real(at);
      if (type == SQLITE_TEXT || type == SQLITE_BLOB) tell(column(at) + " is no number");
    } else if (!set_member(member, answer_.text(at), shapes)) {
      tell(std::string(answer_.name(at)) + " '" + printable(answer_.text(at)) + "' is none");
    }
  }
  // Several, none of them a shape.
  template <typename... T>
  void read_all(T&... members) {
    KeptShapes none;
    (read(members, none), ...);
  }
  // A statistic that is a whole number.
  void read_count(double& value, KeptShapes& shapes) {
    const int at = at_;
    read(value, shapes);
    const std::string_view fault =
        answer_.is_integer(at) ? count_fault(answer_.integer(at)) : count_fault(value);
    if (!fault.empty()) {
      tell(std::string(answer_.name(at)) + " " + std::string(answer_.text(at)) + " " +
           std::string(fault));
    }
  }
  // Past a column that is read elsewhere.
  void skip() { ++at_; }
  int at() const { return at_; }  // the column that comes next
  const std::string& fault() const { return fault_; }

 private:
  std::string column(int at) const { return "column " + std::string(answer_.name(at)); }
  void tell(std::string fault) {
    if (fault_.empty()) fault_ = std::move(fault);
  }

  const SqliteAnswer& answer_;
  int at_;
  std::string fault_;
};

}  // namespace trainmon
