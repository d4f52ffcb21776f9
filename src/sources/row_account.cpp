#include "sources/row_account.h"

#include <algorithm>
#include <tuple>

namespace trainmon {
namespace {

constexpr std::size_t kMostListed = 10000;

}  // namespace

std::string rejection_text(const RejectedRows& rows) {
  const std::string line = rows.line > 0 ? " line " + std::to_string(rows.line) : "";
  return rows.file.native() + line + ": " + rows.what;
}

void RowAccount::read(std::int64_t rows) {
  const std::lock_guard lock(mutex_);
  report_.rows += rows;
}

void RowAccount::reject(RejectedRows rows) {
  const std::lock_guard lock(mutex_);
  report_.rejected += rows.rows;
  if (report_.rejections.size() < kMostListed) {
    report_.rejections.push_back(std::move(rows));
  } else {
    ++unlisted_;
  }
}

void RowAccount::supersede(std::int64_t rows) {
  const std::lock_guard lock(mutex_);
  report_.superseded += rows;
}

void RowAccount::leave_out(std::int64_t rows) {
  const std::lock_guard lock(mutex_);
  report_.left_out += rows;
}

void RowAccount::remark(const std::string& text) {
  const std::lock_guard lock(mutex_);
  std::vector<std::string>& remarks = report_.remarks;
  if (std::find(remarks.begin(), remarks.end(), text) == remarks.end()) remarks.push_back(text);
}

void RowAccount::damage(const std::vector<Damage>& found) {
  for (const Damage& one : found) {
    reject({one.file, 0, 0, "at byte " + std::to_string(one.offset) + ": " + one.what});
  }
}

RowReport RowAccount::report() const {
  const std::lock_guard lock(mutex_);
  RowReport report = report_;
  std::sort(report.rejections.begin(), report.rejections.end(),
            [](const RejectedRows& a, const RejectedRows& b) {
              return std::tie(a.file, a.line) < std::tie(b.file, b.line);
            });
  if (unlisted_ > 0) {
    report.remarks.push_back(std::to_string(unlisted_) +
                             " further places with rejected rows are "
                             "counted, not listed");
  }
  report.written = report.rows - report.rejected - report.superseded - report.left_out;
  return report;
}

}  // namespace trainmon
