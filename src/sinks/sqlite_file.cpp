#include "sinks/sqlite_file.h"

#include <sqlite3.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <set>
#include <system_error>

#include "base/file.h"
#include "base/folder.h"
#include "base/text.h"

namespace trainmon {
namespace {

// `system` is errno after the call, which was 0 before it: sqlite3_system_errno() says nothing of
// commits that fail.
std::string_view reason_of(int code, int system) {
  switch (code & 0xFF) {
    case SQLITE_FULL:
      return "no_space";
    case SQLITE_READONLY:
      return code == SQLITE_READONLY_DBMOVED ? "gone" : "read_only";
    case SQLITE_PERM:
    case SQLITE_AUTH:
      return "permission";
    case SQLITE_NOMEM:
      return "no_memory";
    case SQLITE_BUSY:
    case SQLITE_LOCKED:
    case SQLITE_PROTOCOL:
      return "busy";
    case SQLITE_CORRUPT:
    case SQLITE_NOTADB:
      return "damaged";
    case SQLITE_TOOBIG:
      return "too_large";
    case SQLITE_IOERR:
      if (code == SQLITE_IOERR_NOMEM) return "no_memory";
      // Files that are looked for and not there are everyday business.
      return system == ENOENT ? "io_error" : errno_reason(system);
    case SQLITE_CANTOPEN:
      return errno_reason(system);
    default:
      return "error";
  }
}

SinkError database_error(sqlite3* database, int code, const std::filesystem::path& path) {
  const std::string reason(reason_of(code, errno));
  const char* message = database == nullptr ? sqlite3_errstr(code) : sqlite3_errmsg(database);
  return {reason, "cannot write " + path.string() + ": " + message};
}

}  // namespace

// --- one statement -------------------------------------------------------------------------------

void Statement::Finalize::operator()(sqlite3_stmt* statement) const noexcept {
  sqlite3_finalize(statement);
}

Statement::Statement(sqlite3* database, const std::string& sql, const std::filesystem::path& path)
    : path_(path) {
  sqlite3_stmt* made = nullptr;
  errno = 0;
  const int code = sqlite3_prepare_v3(database, sql.data(), static_cast<int>(sql.size()),
                                      SQLITE_PREPARE_PERSISTENT, &made, nullptr);
  statement_.reset(made);
  if (code != SQLITE_OK) throw database_error(database, code, path_);
}

void Statement::check(int code) {
  if (code == SQLITE_OK) return;
  next_ = 1;
  kept_now_ = 0;
  throw database_error(sqlite3_db_handle(statement_.get()), code, path_);
}

Statement& Statement::integer(std::int64_t value) {
  check(sqlite3_bind_int64(statement_.get(), next_++, value));
  return *this;
}

Statement& Statement::real(double value) {
  check(sqlite3_bind_double(statement_.get(), next_++, value));
  return *this;
}

Statement& Statement::text(std::string_view value) {
  // An empty view may have no address, which would make a NULL.
  const char* bytes = value.empty() ? "" : value.data();
  check(is_utf8(value)
            ? sqlite3_bind_text64(statement_.get(), next_, bytes, value.size(), SQLITE_STATIC,
                                  SQLITE_UTF8)
            : sqlite3_bind_blob64(statement_.get(), next_, bytes, value.size(), SQLITE_STATIC));
  ++next_;
  return *this;
}

void Statement::cell(std::string_view value) {
  if (kept_now_ == kept_.size()) kept_.emplace_back();
  text(kept_[kept_now_++].assign(value));
}

Statement& Statement::null() {
  check(sqlite3_bind_null(statement_.get(), next_++));
  return *this;
}

void Statement::run() {
  next_ = 1;
  kept_now_ = 0;
  errno = 0;
  const int code = sqlite3_step(statement_.get());
  if (code == SQLITE_DONE) {
    sqlite3_reset(statement_.get());
    return;
  }
  const SinkError error = database_error(sqlite3_db_handle(statement_.get()), code, path_);
  sqlite3_reset(statement_.get());
  throw error;
}

// --- one connection ------------------------------------------------------------------------------

void Database::Close::operator()(sqlite3* database) const noexcept {
  sqlite3_close_v2(database);
}

Database::Database(const std::filesystem::path& path) : path_(path) {
  struct stat status {};
  if (::fstat(create_file(path).fd(), &status) != 0) throw file_error(errno, "cannot stat", path);
  inode_ = {status.st_dev, status.st_ino};
  sqlite3* opened = nullptr;
  errno = 0;
  const int code =
      sqlite3_open_v2(path.c_str(), &opened, SQLITE_OPEN_READWRITE | SQLITE_OPEN_NOMUTEX, nullptr);
  database_.reset(opened);
  if (code != SQLITE_OK) {
    ::unlink(path.c_str());
    throw database_error(opened, code, path);
  }
  sqlite3_extended_result_codes(opened, 1);
}

void Database::run(const std::string& sql) {
  errno = 0;
  const int code = sqlite3_exec(database_.get(), sql.c_str(), nullptr, nullptr, nullptr);
  if (code != SQLITE_OK) throw database_error(database_.get(), code, path_);
}

void Database::begin_unseen() {
  run("PRAGMA journal_mode = OFF");
  run("PRAGMA synchronous = OFF");
  run("BEGIN");
}

std::string Database::value(const std::string& sql) {
  std::string found;
  const auto take = [](void* out, int columns, char** values, char**) {
    auto& text = *static_cast<std::string*>(out);
    if (text.empty() && columns > 0 && values[0] != nullptr) text = values[0];
    return 0;
  };
  errno = 0;
  const int code = sqlite3_exec(database_.get(), sql.c_str(), take, &found, nullptr);
  if (code != SQLITE_OK) throw database_error(database_.get(), code, path_);
  return found;
}

bool Database::in_transaction() const {
  return sqlite3_get_autocommit(database_.get()) == 0;
}

void Database::note_descriptors() {
  descriptors_.clear();
  std::set<std::pair<dev_t, ino_t>> files;
  for (const char* const end : {"", "-wal", "-shm", "-journal"}) {
    struct stat status {};
    if (::stat((path_.native() + end).c_str(), &status) == 0) {
      files.emplace(status.st_dev, status.st_ino);
    }
  }
  for (const std::filesystem::path& entry : entries_of("/proc/self/fd")) {
    struct stat status {};
    // By its name: other threads close descriptors of theirs meanwhile.
    if (::stat(entry.c_str(), &status) != 0) continue;
    const std::pair file(status.st_dev, status.st_ino);
    if (files.contains(file)) {
      descriptors_.emplace_back(std::atoi(entry.filename().c_str()), file);
    }
  }
}

bool Database::has_descriptors() const {
  return std::ranges::all_of(descriptors_, [](const auto& one) {
    struct stat status {};
    return ::fstat(one.first, &status) == 0 &&
           one.second == std::pair(status.st_dev, status.st_ino);
  });
}

bool Database::is_linked() const {
  struct stat status {};
  if (::stat(path_.c_str(), &status) != 0) return errno != ENOENT && errno != ENOTDIR;
  return inode_ == std::pair(status.st_dev, status.st_ino);
}

}  // namespace trainmon
