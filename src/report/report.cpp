// A page is made anew with fewer columns until it is small enough.
#include "report/report.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <fstream>
#include <span>
#include <stdexcept>

#include "base/md5.h"
#include "base/staged_files.h"
#include "base/text.h"
#include "read/account.h"
#include "read/open_logs.h"
#include "read/row_filter.h"
#include "report/encoding.h"
#include "report/first_screen.h"
#include "report/gather.h"
#include "report/gzip.h"
#include "report/page.h"
#include "report/payload.h"

namespace trainmon {
namespace {

// Of the lines of a page that is much too large one of so many says so.
constexpr std::size_t kSampled = 16;
constexpr std::size_t kManyLines = 256;

// What can be told apart in so few columns is not worth a line.
constexpr std::size_t kFewestColumns = 64;

// Each @NAME@ of the page in turn; what is put in is not looked at again.
std::string filled(std::string_view page,
                   const std::vector<std::pair<std::string_view, std::string_view>>& parts) {
  std::string out;
  std::size_t size = page.size();
  for (const auto& [name, part] : parts) size += part.size();
  out.reserve(size);
  while (!page.empty()) {
    const std::size_t at = page.find('@');
    out += page.substr(0, at);
    if (at == std::string_view::npos) break;
    page.remove_prefix(at);
    const auto part =
        std::ranges::find_if(parts, [&](const auto& one) { return page.starts_with(one.first); });
    out += part == parts.end() ? page.substr(0, 1) : part->second;
    page.remove_prefix(part == parts.end() ? 1 : part->first.size());
  }
  return out;
}

// Sets the page and its digest.
void fill(Report& made, std::span<const std::filesystem::path> runs, const ReportOptions& options,
          const page::Gathered& gathered, std::span<const Account> books) {
  std::string().swap(made.html);  // gives back the memory of one that was too large
  std::string title;
  for (const std::filesystem::path& one : runs) {
    title += (title.empty() ? "" : " | ") + one.filename().string();
  }
  const std::string first_screen = page::first_screen_json(runs, options, made, gathered, books);
  std::string data = page::payload(gathered);  // one form at a time: each is large
  data = page::gzipped(data);
  data = page::base64(data);
  // Scripts of this page alone run: nobody who names a tensor knows the digest of all that is in
  // it.
  Md5 digest;
  digest.add(first_screen);
  digest.add(data);
  made.digest = digest.finish();
  const std::string_view live = R"(<meta name="live"><link rel="icon" href="data:,">)";
  made.html =
      filled(page::kHtml, {{"@BEGIN@", kReportBegins},
                           {"@TITLE@", page::html_text(title)},
                           {"@NONCE@", made.digest},
                           {"@ASKS@", options.is_live ? "connect-src 'self'; img-src data:; " : ""},
                           {"@LIVE@", options.is_live ? live : ""},
                           {"@STYLE@", page::kStyle},
                           {"@SCRIPT@", page::kScript},
                           {"@REPORT@", page::script_safe(first_screen)},
                           {"@DATA@", data}});
}

// The lines that are least unusual go first. False where there is nothing left to take away.
bool make_smaller(page::CellTable& table) {
  std::size_t columns = 0;
  for (const std::string& kind : table.kinds()) {
    columns = std::max(columns, table.columns(kind).size());
  }
  if (columns > kFewestColumns && table.coarsen()) return true;
  const std::size_t lines = table.lines().size();
  if (lines < 2) return table.coarsen();
  std::vector<std::size_t> kept = table.by_unusual();
  kept.resize(lines / 2);
  std::ranges::sort(kept);
  table.keep(kept);
  return true;
}

// Whether the numbers alone, in base64, are surely more than a page may have.
bool is_much_too_large(const page::CellTable& table, std::int64_t most) {
  if (table.lines().size() < kManyLines || table.cells() < most / 8) return false;
  return page::sampled_bytes(table, kSampled) > most;
}

// Holds the runs against each other.
void compare_runs(const std::filesystem::path& run, const OpenedRun& other,
                  const ReportOptions& options, Report& made) {
  made.other_diagnosis = diagnose(other, options.select);
  CompareOptions both;
  both.a = run;
  both.b = *options.other;
  both.select = options.select;
  try {
    made.comparison = compare(both);
  } catch (const std::runtime_error& error) {  // both runs can be read: they have nothing in common
    made.not_compared = error.what();
  }
}

// The step that a page is about; -1: none.
std::int64_t step_of(const Report& made) {
  if (made.comparison && made.comparison->first) return made.comparison->first->step;
  for (const Diagnosis* one :
       {&made.diagnosis, made.other_diagnosis ? &*made.other_diagnosis : nullptr}) {
    if (one != nullptr && one->verdict) return one->findings[*one->verdict].step;
  }
  return made.diagnosis.findings.empty() ? -1 : made.diagnosis.findings.front().step;
}

bool is_without_findings(const Report& made) {
  return made.diagnosis.findings.empty() &&
         (!made.other_diagnosis || made.other_diagnosis->findings.empty());
}

// All ranks of it: what is missing is told by all.
OpenedRun opened(const std::filesystem::path& run, const ReportOptions& options,
                 Indexes indexes = Indexes::left) {
  ReadOptions all;
  all.threads = options.select.threads;
  return {run, all, indexes};
}

// Makes the page of what was found and gathered.
Report finished(Report made, std::span<const OpenedRun> opened, const ReportOptions& options,
                page::Gathered gathered) {
  made.diagnosis.left_history = gathered.runs[0].left_history;
  if (made.other_diagnosis) made.other_diagnosis->left_history = gathered.runs[1].left_history;
  std::vector<std::filesystem::path> runs;
  std::vector<Account> books;
  for (const OpenedRun& one : opened) {
    runs.push_back(one.path);
    books.push_back(account(one));
  }
  // Of lines with few values each: what a page has room for, four times.
  for (page::CellTable* const table : {&gathered.rows, &gathered.curves}) {
    while (table->places() > options.max_bytes / 2 && make_smaller(*table)) {
    }
  }
  while (is_much_too_large(gathered.rows, options.max_bytes) && make_smaller(gathered.rows)) {
  }
  while (true) {
    fill(made, runs, options, gathered, books);
    if (static_cast<std::int64_t>(made.html.size()) <= options.max_bytes) break;
    if (gathered.histograms.coarsen()) continue;
    if (!make_smaller(gathered.rows) && !make_smaller(gathered.curves)) break;
  }
  for (const page::GatheredRun& one : gathered.runs) made.rows += one.count;
  made.matches_nothing =
      made.rows == 0 && chooses_rows(options.select) && is_without_findings(made);
  made.step_width = gathered.rows.width();
  made.left_out_lines = gathered.rows.left_out();
  return made;
}

}  // namespace

Report report(const std::filesystem::path& run, const ReportOptions& options) {
  std::vector<OpenedRun> runs = {opened(run, options)};
  Report made;
  made.diagnosis = diagnose(runs[0], options.select);
  if (options.other) {
    runs.push_back(opened(*options.other, options));
    compare_runs(run, runs[1], options, made);
  }
  const std::array<const Diagnosis*, 2> found = {
      &made.diagnosis, made.other_diagnosis ? &*made.other_diagnosis : nullptr};
  page::Gathered gathered = page::gather(runs, found, options, step_of(made));
  return finished(std::move(made), runs, options, std::move(gathered));
}

struct GrowingReport::Kept {
  GrowingDiagnosis diagnosis;
  page::GrowingGather gathered;
};

GrowingReport::GrowingReport(std::filesystem::path run, ReportOptions options)
    : run_(std::move(run)), options_(std::move(options)), kept_(std::make_unique<Kept>()) {}

GrowingReport::~GrowingReport() = default;

Report GrowingReport::make() {
  try {
    // It is looked at while it grows, by a server that writes nothing there.
    const OpenedRun run = opened(run_, options_, Indexes::only_used);
    Report made;
    made.diagnosis = kept_->diagnosis.look(run);
    page::Gathered gathered = kept_->gathered.look(run, made.diagnosis, options_, step_of(made));
    return finished(std::move(made), {&run, 1}, options_, std::move(gathered));
  } catch (...) {
    kept_ = std::make_unique<Kept>();  // half of what is new may be in it
    throw;
  }
}

std::int64_t GrowingReport::rows_read() const {
  return kept_->diagnosis.rows_read() + kept_->gathered.rows_read();
}

std::vector<ReportLine> report_lines(const Report& report) {
  std::vector<ReportLine> lines;
  const auto add_verdict = [&](const std::string& which, const Diagnosis& found) {
    if (found.verdict) {
      const detect::Finding& first = found.findings[*found.verdict];
      lines.push_back({which + "first wrong: " + place_text(found, first), true});
    } else {
      lines.push_back({which + sound_text(found)});
    }
  };
  if (!report.other_diagnosis) {
    if (!report.matches_nothing) add_verdict("", report.diagnosis);
    return lines;
  }
  if (!report.comparison) {
    lines.push_back({"not compared: " + report.not_compared});
  } else if (report.comparison->first) {
    lines.push_back({"first difference: " + place_text(*report.comparison->first), true});
    lines.push_back({"  " + size_text(*report.comparison->first)});
  } else {
    lines.push_back({extent_text(*report.comparison)});
  }
  add_verdict("A: ", report.diagnosis);
  add_verdict("B: ", *report.other_diagnosis);
  return lines;
}

std::string report_frame(const Report& report) {
  std::string out =
      R"(<iframe sandbox="allow-scripts" title="trainmon report" width="100%" height="800" srcdoc=")";
  out.reserve(report.html.size() + report.html.size() / 64);
  for (const char c : report.html) {
    if (c == '&') {
      out += "&amp;";
    } else if (c == '"') {
      out += "&quot;";
    } else {
      out += c;
    }
  }
  return out + R"("></iframe>)";
}

void check_report_path(const std::filesystem::path& to, bool overwrite) {
  if (to.empty()) throw std::runtime_error("an empty name is no file to write; report.html is one");
  std::error_code unknown;
  if (std::filesystem::is_directory(to, unknown)) {
    throw std::runtime_error(printable(to.native()) + " is a directory; name a file in it");
  }
  const std::filesystem::path folder = to.parent_path();
  if (!folder.empty() && !std::filesystem::is_directory(folder, unknown)) {
    throw std::runtime_error(printable(folder.native()) +
                             " is no directory; name one that is there");
  }
  if (!std::filesystem::exists(to, unknown)) return;
  if (!std::filesystem::is_regular_file(to, unknown)) {
    throw std::runtime_error(printable(to.native()) +
                             " is a pipe or a device; name a file that can be replaced");
  }
  if (!overwrite) {
    std::string begin(kReportBegins.size(), '\0');
    std::ifstream(to, std::ios::binary)
        .read(begin.data(), static_cast<std::streamsize>(begin.size()));
    if (begin != kReportBegins) {
      throw std::runtime_error(printable(to.native()) +
                               " is there and no report; --overwrite (overwrite=True) replaces it");
    }
  }
}

void write_report(const Report& report, const std::filesystem::path& to, bool overwrite) {
  check_report_path(to, overwrite);
  StagedFiles files;
  files.add(to, report.html, kDocumentMode);
  files.commit();
}

}  // namespace trainmon
