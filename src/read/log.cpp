// The whole log of one rank and restart.
#include "read/log.h"

#include <algorithm>
#include <iterator>
#include <memory>
#include <optional>
#include <utility>

#include "base/parallel.h"
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

LogContents check_log(const fs::path& directory, int rank, int restart, unsigned threads) {
  Allowance allowance;
  auto index = std::make_unique<LogIndex>(directory, rank, restart, allowance, threads);
  if (threads > 1 && allowance.is_exhausted()) {
    allowance.renew();  // by whose frames, the threads decided
    index = std::make_unique<LogIndex>(directory, rank, restart, allowance);
  }
  struct Checked {
    std::int64_t rows = 0;
    std::int64_t batches = 0;
    std::vector<Damage> damage;
  };
  const std::vector<LogIndex::Piece> pieces = index->pieces();
  std::vector<Checked> checked(pieces.size());
  const auto all = [](SeriesId) { return true; };
  for_each_parallel(pieces.size(), threads, [&](std::size_t i) {
    Checked& here = checked[i];
    const auto count = [&](RecordBatch&&, const LogIndex::BatchFacts&) { ++here.batches; };
    here.rows = index->read(pieces[i], all, every_column, count, here.damage);
  });
  LogContents whole = index->take_contents();
  whole.rows = 0;
  whole.batch_count = 0;
  for (Checked& one : checked) {
    whole.rows += one.rows;
    whole.batch_count += one.batches;
    std::ranges::move(one.damage, std::back_inserter(whole.damage));
  }
  return whole;
}

}  // namespace trainmon
