// A SQLite database that is written, over SQLite's C interface. Every failure is a SinkError with a
// reason of base/file.h, or `busy` (somebody else has locked it), `damaged`.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <deque>
#include <filesystem>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "sinks/table.h"
#include "trainmon/error.h"

struct sqlite3;
struct sqlite3_stmt;

namespace trainmon {

// One prepared statement: bind from the left, then run. Text that is not UTF-8 is bound as a blob
// of the same bytes, NaN as NULL.
class Statement {
 public:
  Statement(sqlite3* database, const std::string& sql, const std::filesystem::path& path);

  Statement& integer(std::int64_t value);
  Statement& real(double value);
  // Of bytes that live until run() has returned.
  Statement& text(std::string_view value);
  Statement& null();
  // One of the wide row: a fingerprint as its text, what is not known as NULL.
  void cell(std::int64_t value) { integer(value); }
  void cell(double value) { real(value); }
  void cell(std::string_view value);  // kept until run() has returned
  void cell(Fingerprint value) { cell(fingerprint_text(value)); }
  void cell(Unknown) { null(); }
  // Carries it out, without a result, and makes it ready for the next time; also when it throws.
  void run();

 private:
  void check(int code);
  struct Finalize {
    void operator()(sqlite3_stmt* statement) const noexcept;
  };
  std::unique_ptr<sqlite3_stmt, Finalize> statement_;
  std::filesystem::path path_;
  int next_ = 1;
  std::deque<std::string> kept_;  // texts of cells, each at an address that stays
  std::size_t kept_now_ = 0;      // of these, bound
};

// One connection. For one thread.
class Database {
 public:
  // A new file, made as create_file() does; an existing one is an error (reason "exists").
  explicit Database(const std::filesystem::path& path);

  void run(const std::string& sql);
  // Begins the one transaction of a file that nobody sees before it is whole.
  void begin_unseen();
  // The first column of the first row of the answer; empty for none.
  std::string value(const std::string& sql);
  Statement prepare(const std::string& sql) { return {database_.get(), sql, path_}; }
  // Whether a transaction is open: after some errors SQLite has taken it back by itself.
  bool in_transaction() const;
  // Whether the file still has the name it was made with.
  bool is_linked() const;
  // Of a new file that nobody else has opened: by which descriptors SQLite writes from now on.
  void note_descriptors();
  // Whether they are its own still. Somebody may close all that a process has open.
  bool has_descriptors() const;
  // Never touches them again: they may be somebody else's, and closing is a write, too.
  void abandon() { (void)database_.release(); }
  const std::filesystem::path& path() const { return path_; }

 private:
  struct Close {
    void operator()(sqlite3* database) const noexcept;
  };
  std::filesystem::path path_;
  std::pair<dev_t, ino_t> inode_;
  std::vector<std::pair<int, std::pair<dev_t, ino_t>>> descriptors_;
  std::unique_ptr<sqlite3, Close> database_;
};

}  // namespace trainmon
