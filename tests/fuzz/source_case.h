// One conversion's source over a damaged file: what every source owes, whatever it was given.
#pragma once

#include <memory>
#include <stdexcept>

#include "fuzz.h"
#include "sources/source.h"

namespace trainmon::fuzz {

using OpenSource = std::unique_ptr<Source> (*)(const SourceOptions&, RowAccount&);

struct Converted {
  bool is_refused = false;  // an error instead of an account
  std::int64_t rows = 0;
  std::int64_t rejected = 0;
  std::size_t rejections = 0;
};

// Reads every part. Rows handed over and the account's must be the same number; every row is whole.
inline Converted read_all(OpenSource open, const std::filesystem::path& from) {
  SourceOptions options;
  options.from = from;
  RowAccount account;
  std::int64_t taken = 0;
  try {
    const std::unique_ptr<Source> source = open(options, account);
    for (std::size_t part = 0; part < source->parts().size(); ++part) {
      source->read(
          part,
          [&](const TableRow& row) {
            ++taken;
            check(row.series != nullptr, "a row has a series");
            check(row.values.size() == source->stats().size(), "a row has every value");
          },
          account);
    }
  } catch (const std::runtime_error& error) {
    check(*error.what() != '\0', "a refusal says why");
    return {true};
  } catch (const std::invalid_argument& error) {
    check(*error.what() != '\0', "a refusal says why");
    return {true};
  }
  const RowReport report = account.report();
  check(report.written == taken, "rows written are those handed over");
  check(report.rows == report.written + report.rejected + report.superseded, "the account adds up");
  for (const RejectedRows& one : report.rejections) {
    check(!one.file.empty() && !one.what.empty(), "a rejection names its file and why");
    check(one.rows >= 0, "no rejection takes rows back");
  }
  return {false, report.rows, report.rejected, report.rejections.size()};
}

// Records below the first line where no quote makes it hard to tell: an independent count.
inline std::int64_t lines_below_the_first(std::string_view text) {
  std::int64_t lines = 0;
  for (const char c : text) lines += c == '\n' ? 1 : 0;
  if (!text.empty() && text.back() != '\n') ++lines;
  return lines - 1;
}

inline void check_lines(const Converted& done, std::string_view text) {
  if (done.is_refused || text.find('"') != std::string_view::npos) return;
  if (done.rows == 0 && done.rejections > 0) return;  // its first line was of no use
  check(done.rows == lines_below_the_first(text), "every line is written, rejected or superseded");
}

}  // namespace trainmon::fuzz
