// Rows of a kind lie in the file block after block; what the rows of a window share is kept beside.
#include "read/rows_by_kind.h"

#ifdef __GLIBC__
#include <malloc.h>
#endif

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <iterator>
#include <numeric>
#include <span>
#include <tuple>

#include "base/made_ahead.h"
#include "base/text.h"

namespace trainmon {
namespace {

constexpr std::size_t kBlockBytes = std::size_t{1} << 18;

// A row in the file; its statistics follow it.
struct StoredRow {
  std::uint32_t series = 0;
  std::uint32_t window = 0;  // which WindowPlace
  std::int32_t accum = 0;
  std::int32_t micro_step = 0;
  std::int32_t call = 0;
  std::uint32_t flags = 0;
  std::uint64_t seq = 0;
  const Shape* shape = nullptr;
};

StoredRow stored_row(const char* bytes) {
  StoredRow row;
  std::memcpy(&row, bytes, sizeof(row));
  return row;
}

std::size_t bytes_of_row(const std::vector<Stat>& stats) {
  return sizeof(StoredRow) + stats.size() * sizeof(double);
}

// For each series its place in the order of files; the same for those that the order cannot tell.
std::vector<std::uint32_t> ranking_of(const std::vector<Series>& series) {
  using Key = std::tuple<std::string, std::int32_t, std::string>;
  std::map<Key, std::vector<std::size_t>> sorted;
  for (std::size_t i = 0; i < series.size(); ++i) {
    sorted[{valid_text(series[i].name), series[i].chunk, valid_text(series[i].element)}].push_back(
        i);
  }
  std::vector<std::uint32_t> ranking(series.size());
  std::uint32_t place = 0;
  for (const auto& [key, same] : sorted) {
    for (const std::size_t one : same) ranking[one] = place;
    ++place;
  }
  return ranking;
}

}  // namespace

std::string valid_text(std::string_view text) {
  if (is_utf8(text)) return std::string(text);
  std::string valid;
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t length = decode_utf8(text, at).length;
    if (length > 0) {
      valid += text.substr(at, length);
      at += length;
      continue;
    }
    char escaped[5];
    std::snprintf(escaped, sizeof(escaped), "\\x%02x", static_cast<unsigned char>(text[at++]));
    valid += escaped;
  }
  return valid;
}

KindRows::KindRows(std::string bytes, int rank, const std::vector<Stat>& stats,
                   const std::vector<WindowPlace>& windows,
                   const std::vector<std::uint32_t>& ranking)
    : bytes_(std::move(bytes)), rank_(rank), stats_(stats), windows_(windows) {
  const std::size_t rows = bytes_.size() / bytes_of_row(stats_);
  std::vector<std::uint32_t> next(ranking.size() + 1);  // where a tensor's next row goes
  for (std::size_t i = 0; i < rows; ++i) ++next[ranking[stored_row(row(i)).series] + 1];
  std::partial_sum(next.begin(), next.end(), next.begin());
  const std::vector<std::uint32_t> begins = next;
  order_.resize(rows);
  for (std::size_t i = 0; i < rows; ++i) {
    order_[next[ranking[stored_row(row(i)).series]]++] = static_cast<std::uint32_t>(i);
  }
  const auto is_before = [this](std::uint32_t a, std::uint32_t b) {
    const StoredRow one = stored_row(row(a)), other = stored_row(row(b));
    const WindowPlace &x = windows_[one.window], &y = windows_[other.window];
    return std::tie(x.restart, x.step, x.attempt, one.seq) <
           std::tie(y.restart, y.step, y.attempt, other.seq);
  };
  for (std::size_t i = 0; i + 1 < begins.size(); ++i) {
    const std::span tensor(order_.data() + begins[i], begins[i + 1] - begins[i]);
    if (std::ranges::is_sorted(tensor, is_before)) continue;
    std::ranges::stable_sort(tensor, is_before);
  }
}

const char* KindRows::row(std::size_t place) const {
  return bytes_.data() + place * bytes_of_row(stats_);
}

void KindRows::read(std::size_t begin, std::size_t end, std::vector<PlacedRow>& rows,
                    std::vector<double>& values) const {
  end = std::min(end, size());
  rows.resize(end - std::min(begin, end));
  values.resize(rows.size() * stats_.size());
  for (std::size_t i = 0; i < rows.size(); ++i) {
    const char* const bytes = row(order_[begin + i]);
    const StoredRow one = stored_row(bytes);
    const WindowPlace& window = windows_[one.window];
    PlacedRow& out = rows[i];
    out.restart = window.restart;
    out.rank = rank_;
    out.attempt = window.attempt;
    out.accum = one.accum;
    out.micro_step = one.micro_step;
    out.call = one.call;
    out.flags = one.flags;
    out.fate = window.fate;
    out.window = window.window;
    out.step = window.step;
    out.seq = one.seq;
    out.loss_scale = window.loss_scale;
    out.shape = one.shape;
    out.series = one.series;
    std::memcpy(values.data() + i * stats_.size(), bytes + sizeof(StoredRow),
                stats_.size() * sizeof(double));
  }
}

RowsByKind::RowsByKind(const std::filesystem::path& run, const ReadOptions& options,
                       std::vector<Stat> stats, std::filesystem::path folder)
    : threads_(threads_with_pieces(options.threads)),
      stats_(std::move(stats)),
      folder_(std::move(folder)),
      stream_(run, options),
      facts_(stream_.facts()),
      ranking_(ranking_of(facts_.series)) {
  for (const Series& series : facts_.series) kinds_.try_emplace(series.kind, kinds_.size());
  for (const Series& series : facts_.series) kind_of_.push_back(kinds_.at(series.kind));
}

void RowsByKind::take_rank(int rank) {
  rank_ = rank;
  parts_.assign(kinds_.size(), {});
  windows_.clear();
  end_ = 0;
  path_ = folder_ / ("rows-of-rank-" + std::to_string(rank));
  to_ = create_file(path_);
  from_ = open_file(path_);
  std::filesystem::remove(path_);
  const std::span<const RunStream::Piece> pieces = stream_.pieces_of(rank);
  MadeAhead<PieceRows> read_ahead(pieces.size(), threads_,
                                  [&](std::size_t i) { return read(pieces[i]); });
  while (std::optional<PieceRows> piece = read_ahead.next()) take(std::move(*piece));
  for (Part& part : parts_) {
    write(part);
    std::string().swap(part.waiting);
  }
  stream_.forget(rank);
#ifdef __GLIBC__
  // Pieces had memory of their threads, which nobody else would use.
  constexpr std::int64_t kWorthTrimming = std::int64_t{1} << 24;
  trimmable_ += end_;
  if (trimmable_ >= kWorthTrimming) {
    ::malloc_trim(0);
    trimmable_ = 0;
  }
#endif
}

RowsByKind::PieceRows RowsByKind::read(const RunStream::Piece& piece) const {
  PieceRows found;
  found.rows.resize(kinds_.size());
  RunStream::Take take{[&](const ReadRow& row) { add(row, found); },
                       [&](ReadPayload&&) { ++found.payloads; }};
  take.columns = columns_of(stats_);
  stream_.read(piece, take, found.damage);
  return found;
}

void RowsByKind::add(const ReadRow& row, PieceRows& piece) const {
  const StoredRow stored = {
      row.series, window_of(row, piece), row.accum, row.micro_step, row.call, row.flags, row.seq,
      row.shape};
  std::string& bytes = piece.rows[kind_of_[row.series]];
  bytes.append(reinterpret_cast<const char*>(&stored), sizeof(stored));
  for (const Stat stat : stats_) {
    const double value = derive(stat, row.state);
    bytes.append(reinterpret_cast<const char*>(&value), sizeof(value));
  }
}

std::uint32_t RowsByKind::window_of(const ReadRow& row, PieceRows& piece) const {
  const auto next = static_cast<std::uint32_t>(piece.windows.size());
  const auto [known, is_new] =
      piece.newest_window.try_emplace(facts_.series[row.series].optimizer, next);
  if (!is_new && piece.windows[known->second].window == row.window) return known->second;
  known->second = next;
  piece.windows.push_back(
      {row.restart, row.attempt, row.fate, row.window, row.step, row.loss_scale});
  return next;
}

void RowsByKind::take(PieceRows&& piece) {
  const auto before = static_cast<std::uint32_t>(windows_.size());
  windows_.insert(windows_.end(), piece.windows.begin(), piece.windows.end());
  payloads_ += piece.payloads;
  facts_.damage.insert(facts_.damage.end(), piece.damage.begin(), piece.damage.end());
  for (std::size_t kind = 0; kind < parts_.size(); ++kind) {
    std::string& rows = piece.rows[kind];
    for (std::size_t at = 0; at < rows.size(); at += bytes_of_row(stats_)) {
      StoredRow row = stored_row(rows.data() + at);
      row.window += before;
      std::memcpy(rows.data() + at, &row, sizeof(row));
    }
    Part& part = parts_[kind];
    part.waiting += rows;
    if (part.waiting.size() >= kBlockBytes) write(part);
  }
}

void RowsByKind::write(Part& part) {
  if (part.waiting.empty()) return;
  write_at(to_, end_, part.waiting, path_);
  part.blocks.emplace_back(end_, part.waiting.size());
  end_ += static_cast<std::int64_t>(part.waiting.size());
  part.waiting.clear();
}

std::vector<std::string> RowsByKind::kinds() const {
  std::vector<std::string> kinds;
  for (const auto& [kind, number] : kinds_) {
    if (!parts_.empty() && !parts_[number].blocks.empty()) kinds.push_back(kind);
  }
  return kinds;
}

KindRows RowsByKind::rows_of(const std::string& kind) const {
  const Part& part = parts_[kinds_.at(kind)];
  std::size_t size = 0;
  for (const auto& [offset, bytes] : part.blocks) size += bytes;
  std::string rows(size, '\0');
  std::size_t at = 0;
  for (const auto& [offset, bytes] : part.blocks) {
    if (read_at(from_, offset, rows.data() + at, bytes, path_) != bytes) {
      throw SinkError("io_error", "cannot read " + path_.native() + ": it has become shorter");
    }
    at += bytes;
  }
  return {std::move(rows), rank_, stats_, windows_, ranking_};
}

}  // namespace trainmon
