// Binds scans. A pass keeps its scan, and a stream its pass, so Python may let go of either first.
#include "scan.h"

#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <string>
#include <utility>

#include "base/parallel.h"
#include "gil.h"
#include "init.h"
#include "offline_call.h"
#include "rows.h"

namespace trainmon {

namespace nb = nanobind;

namespace {

std::shared_ptr<Scan> open_scan(const nb::bytes& run, std::vector<std::string> kinds,
                                std::vector<std::string> include, std::vector<std::string> exclude,
                                std::vector<int> ranks, std::optional<std::int64_t> first_step,
                                std::optional<std::int64_t> last_step, bool all_restarts,
                                const std::vector<std::string>& names, std::size_t rows) {
  ReadOptions options = options_of(std::move(kinds), std::move(include), std::move(exclude),
                                   std::move(ranks), first_step, last_step);
  options.all_restarts = all_restarts;
  const std::filesystem::path path = path_of(run);
  return unlocked(path,
                  [&] { return std::make_shared<Scan>(path, options, statistics(names), rows); });
}

std::shared_ptr<ColumnTable> without_rows(const std::shared_ptr<Scan>& scan) {
  return RowColumns(scan->stream.facts().series, scan->stats).table({});
}

nb::object stream_of(const std::shared_ptr<Scan>& scan, const nb::object&) {
  const auto pass = std::make_shared<ScanPass>(scan);
  return arrow_stream(*without_rows(scan), [pass] { return pass->next(); });
}

}  // namespace

Scan::Scan(const std::filesystem::path& run, const ReadOptions& options, std::vector<Stat> asked,
           std::size_t most)
    : stream(run, options), stats(std::move(asked)), rows(most) {}

ScanPass::ScanPass(std::shared_ptr<const Scan> scan)
    : scan_(std::move(scan)), columns_(scan_->stream.facts().series, scan_->stats) {
  columns_.number_texts();
}

std::shared_ptr<ColumnTable> ScanPass::next() {
  while (rows_.size() - given_ < scan_->rows && next_piece_ < scan_->stream.pieces().size()) {
    read_pieces();
  }
  const std::size_t count = std::min(rows_.size() - given_, scan_->rows);
  if (count == 0) {
    warn_of_damage();
    return nullptr;
  }
  auto table = columns_.table(std::span(rows_).subspan(given_, count));
  given_ += count;
  return table;
}

void ScanPass::read_pieces() {
  const auto& pieces = scan_->stream.pieces();
  struct Found {
    std::vector<ReadRow> rows;
    std::vector<Damage> damage;
  };
  const unsigned threads = threads_with_pieces(0);
  std::vector<Found> found(std::min<std::size_t>(threads, pieces.size() - next_piece_));
  for_each_parallel(found.size(), threads, [&](std::size_t i) {
    RunStream::Take take;
    take.row = [&](const ReadRow& row) { found[i].rows.push_back(row); };
    take.columns = columns_of(scan_->stats);
    scan_->stream.read(pieces[next_piece_ + i], take, found[i].damage);
  });
  next_piece_ += found.size();
  rows_.erase(rows_.begin(), rows_.begin() + static_cast<std::ptrdiff_t>(given_));
  given_ = 0;
  for (const Found& one : found) {
    rows_.insert(rows_.end(), one.rows.begin(), one.rows.end());
    damage_.insert(damage_.end(), one.damage.begin(), one.damage.end());
  }
}

void ScanPass::warn_of_damage() {
  if (damage_.empty()) return;
  const Damage& first = damage_.front();
  std::string text = "parts of the run could not be used: " + first.file.string() + " at byte " +
                     std::to_string(first.offset) + ": " + first.what;
  if (damage_.size() > 1) text += " and " + std::to_string(damage_.size() - 1) + " more";
  damage_.clear();
  const HeldGil gil;
  if (PyErr_WarnEx(PyExc_RuntimeWarning, text.c_str(), 1) != 0) throw nb::python_error();
}

void init_scan(nb::module_& module) {
  nb::class_<ScanPass>(module, "ScanPass")
      .def("next", &ScanPass::next, nb::call_guard<ReleasedGil>());
  nb::class_<Scan>(module, "Scan")
      .def(
          "begin", [](std::shared_ptr<Scan> scan) { return new ScanPass(std::move(scan)); },
          nb::rv_policy::take_ownership)
      .def("empty", &without_rows, "A table of no row.")
      .def("__arrow_c_stream__", &stream_of, nb::arg("requested_schema").none())
      .def("missing_text", [](const Scan& s) { return missing_text(s.stream.facts().missing); })
      .def("suggested", [](const Scan& s) { return text_list(s.stream.facts().suggested); })
      .def("incomplete", [](const Scan& s) { return text_list(s.stream.facts().incomplete); })
      .def("damage", [](const Scan& s) { return damage_list(s.stream.facts().damage); });
  module.def("open_scan", &open_scan, nb::arg("run"), nb::arg("kinds"), nb::arg("include"),
             nb::arg("exclude"), nb::arg("ranks"), nb::arg("first_step").none(),
             nb::arg("last_step").none(), nb::arg("all_restarts"), nb::arg("stats"),
             nb::arg("rows"));
}

}  // namespace trainmon
