// Reading tables back without any code of ours: CSV character by character, SQLite by its own
// library.
#pragma once

#include <sqlite3.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <stdexcept>
#include <string>
#include <vector>

namespace trainmon {

using TextRow = std::map<std::string, std::string>;  // by column

// The whole lines of a CSV file (RFC 4180); what follows the last line end outside of quotes is
// left out.
inline std::vector<std::vector<std::string>> csv_lines(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  const std::string text{std::istreambuf_iterator<char>(file), {}};
  std::vector<std::vector<std::string>> lines;
  std::vector<std::string> line(1);
  bool is_quoted = false;
  for (std::size_t at = 0; at < text.size(); ++at) {
    const char c = text[at];
    if (is_quoted) {
      if (c != '"') {
        line.back() += c;
      } else if (at + 1 < text.size() && text[at + 1] == '"') {
        line.back() += c;
        ++at;
      } else {
        is_quoted = false;
      }
    } else if (c == '"') {
      is_quoted = true;
    } else if (c == ',') {
      line.emplace_back();
    } else if (c == '\n') {
      lines.push_back(std::move(line));
      line.assign(1, "");
    } else {
      line.back() += c;
    }
  }
  return lines;
}

// Rows of DIRECTORY/PREFIX*.csv, in the order of the files' names.
inline std::vector<TextRow> csv_rows(const std::filesystem::path& directory,
                                     const std::string& prefix) {
  std::vector<std::filesystem::path> files;
  for (const auto& entry : std::filesystem::directory_iterator(directory)) {
    const std::string name = entry.path().filename().string();
    if (name.starts_with(prefix) && name.ends_with(".csv")) files.push_back(entry.path());
  }
  std::sort(files.begin(), files.end());
  std::vector<TextRow> rows;
  for (const auto& path : files) {
    const auto lines = csv_lines(path);
    for (std::size_t i = 1; i < lines.size(); ++i) {
      if (lines[i].size() != lines[0].size()) throw std::runtime_error("a line of another length");
      TextRow row;
      for (std::size_t c = 0; c < lines[0].size(); ++c) row[lines[0][c]] = lines[i][c];
      rows.push_back(std::move(row));
    }
  }
  return rows;
}

// NULL is "NULL", a real has 17 digits.
inline std::vector<TextRow> sqlite_rows(const std::filesystem::path& path, const std::string& sql) {
  sqlite3* database = nullptr;
  sqlite3_stmt* statement = nullptr;
  std::vector<TextRow> rows;
  int code = sqlite3_open_v2(path.c_str(), &database, SQLITE_OPEN_READWRITE, nullptr);
  if (code == SQLITE_OK) {
    code = sqlite3_prepare_v2(database, sql.c_str(), -1, &statement, nullptr);
  }
  while (code == SQLITE_OK || code == SQLITE_ROW) {
    code = sqlite3_step(statement);
    if (code != SQLITE_ROW) break;
    TextRow row;
    for (int i = 0; i < sqlite3_column_count(statement); ++i) {
      std::string& cell = row[sqlite3_column_name(statement, i)];
      if (sqlite3_column_type(statement, i) == SQLITE_NULL) {
        cell = "NULL";
      } else if (sqlite3_column_type(statement, i) == SQLITE_FLOAT) {
        char text[40];
        std::snprintf(text, sizeof text, "%.17g", sqlite3_column_double(statement, i));
        cell = text;
      } else {
        const void* bytes = sqlite3_column_blob(statement, i);
        const int size = sqlite3_column_bytes(statement, i);
        if (size > 0) cell.assign(static_cast<const char*>(bytes), static_cast<std::size_t>(size));
      }
    }
    rows.push_back(std::move(row));
  }
  const std::string message = sqlite3_errmsg(database);
  sqlite3_finalize(statement);
  sqlite3_close(database);
  if (code != SQLITE_DONE) throw std::runtime_error(path.string() + ": " + message);
  return rows;
}

}  // namespace trainmon
