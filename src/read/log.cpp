// The whole log of one rank and restart.
#include "read/log.h"

#include <algorithm>
#include <iterator>
#include <optional>
#include <utility>

#include "read/log_index.h"

namespace trainmon {

namespace fs = std::filesystem;

namespace {

std::optional<Columns> every_column(const LogIndex::BatchFacts&) {
  return Columns::all();
}

}  // namespace

LogContents read_log(const fs::path& directory, int rank, int restart,
                     const std::function<bool(const Series&)>& wanted) {
  Allowance allowance;
  const LogIndex index(directory, rank, restart, allowance);
  LogContents whole = index.contents();
  whole.batches.clear();
  const auto is_wanted = [&](SeriesId id) {
    return !wanted || wanted(index.contents().series.at(id));
  };
  whole.rows = 0;  // those that come: a batch may have looked sound before its values were read
  for (const LogIndex::Piece& piece : index.pieces()) {
    whole.rows += index.read(
        piece, is_wanted, every_column,
        [&](RecordBatch&& batch, const LogIndex::BatchFacts&) {
          whole.batches.push_back(std::move(batch));
        },
        whole.damage);
  }
  whole.batch_count = std::ssize(whole.batches);
  std::ranges::sort(whole.batches, {}, &RecordBatch::number);
  return whole;
}

LogContents check_log(const fs::path& directory, int rank, int restart) {
  Allowance allowance;
  LogIndex index(directory, rank, restart, allowance);
  std::int64_t rows = 0, batches = 0;
  std::vector<Damage> damage;
  const auto all = [](SeriesId) { return true; };
  const auto count = [&](RecordBatch&&, const LogIndex::BatchFacts&) { ++batches; };
  for (const LogIndex::Piece& piece : index.pieces()) {
    rows += index.read(piece, all, every_column, count, damage);
  }
  LogContents whole = index.take_contents();
  whole.rows = rows;
  whole.batch_count = batches;
  std::move(damage.begin(), damage.end(), std::back_inserter(whole.damage));
  return whole;
}

}  // namespace trainmon
