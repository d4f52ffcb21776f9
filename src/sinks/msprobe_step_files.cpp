#include "sinks/msprobe_step_files.h"

#include <sys/stat.h>
#include <unistd.h>

#include "base/file.h"
#include "base/log.h"

namespace trainmon::msprobe_csv {
namespace {

std::string first_line(const Appendable& found, const std::filesystem::path& path) {
  std::string text(4096, '\0');
  const ssize_t got = ::pread(found.file.fd(), text.data(), text.size(), 0);
  if (got < 0) throw file_error(errno, "cannot read", path);
  text.resize(static_cast<std::size_t>(got));
  return text.substr(0, text.find('\n') + 1);
}

}  // namespace

void StepFiles::open(const std::filesystem::path& directory, std::int64_t first_step,
                     std::int64_t steps_per_file) {
  directory_ = directory;
  first_step_ = first_step;
  steps_per_file_ = steps_per_file;
}

std::filesystem::path StepFiles::path_of(const std::string& stem, std::int64_t from,
                                         std::int64_t to) const {
  return directory_ / (stem + std::to_string(from) + "-" + std::to_string(to) + ".csv");
}

void StepFiles::append(const StepFile& file, std::int64_t step) {
  const auto& [stem, head, text] = file;
  const std::int64_t from = step - (step - first_step_) % steps_per_file_;
  const std::int64_t to = from + steps_per_file_ - 1;
  Current& current = current_[stem];
  if (current.to == to && current.head == head && append_to(current.path, head, text)) return;
  std::filesystem::path path = path_of(stem, from, to);
  if (!append_to(path, head, text)) {
    std::int64_t last = to;
    for (path = path_of(stem, step, last); !append_to(path, head, text);) {
      path = path_of(stem, step, ++last);
    }
  }
  current = {to, head, path};
}

bool StepFiles::append_to(const std::filesystem::path& path, const std::string& head,
                          const std::string& text) {
  Appendable found;
  in_directory(directory_, [&] { found = open_to_append(path); });
  if (found.size > 0 && first_line(found, path) != head) return false;
  appended_.push_back({path, found.size, found.is_new});
  write_at(found.file, found.size, found.size > 0 ? text : head + text, path);
  return true;
}

void StepFiles::undo() {
  for (const Appended& one : appended_) {
    const int failed =
        one.is_new ? ::unlink(one.path.c_str()) : ::truncate(one.path.c_str(), one.size);
    if (failed != 0) {
      log_line_limited("msprobe.undo", "cannot take back rows from " + one.path.string());
    }
  }
  appended_.clear();
}

}  // namespace trainmon::msprobe_csv
