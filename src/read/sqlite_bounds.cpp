// An allow list: what a later SQLite, or an extension, adds is refused until somebody looked at it.
#include "read/sqlite_bounds.h"

#include <algorithm>
#include <array>
#include <string_view>

namespace trainmon {
namespace {

constexpr int kMostBytes = 64 << 20;  // of a value
// Of one that a user makes: no function of SQLite is interrupted before it ends.
constexpr int kMostBytesOfUser = 1 << 20;

// Sorted. Of https://sqlite.org/lang_corefunc.html, lang_aggfunc, windowfunctions, lang_datefunc,
// lang_mathfunc and json1.
constexpr auto kOnlyCompute = std::to_array<std::string_view>({
    "->",
    "->>",
    "abs",
    "acos",
    "acosh",
    "asin",
    "asinh",
    "atan",
    "atan2",
    "atanh",
    "avg",
    "ceil",
    "ceiling",
    "char",
    "coalesce",
    "concat",
    "concat_ws",
    "cos",
    "cosh",
    "count",
    "cume_dist",
    "current_date",
    "current_time",
    "current_timestamp",
    "date",
    "datetime",
    "degrees",
    "dense_rank",
    "exp",
    "first_value",
    "floor",
    "format",
    "glob",
    "group_concat",
    "hex",
    "if",
    "ifnull",
    "iif",
    "instr",
    "json",
    "json_array",
    "json_array_length",
    "json_error_position",
    "json_extract",
    "json_group_array",
    "json_group_object",
    "json_insert",
    "json_object",
    "json_patch",
    "json_pretty",
    "json_quote",
    "json_remove",
    "json_replace",
    "json_set",
    "json_type",
    "json_valid",
    "julianday",
    "lag",
    "last_value",
    "lead",
    "length",
    "like",
    "likelihood",
    "likely",
    "ln",
    "log",
    "log10",
    "log2",
    "lower",
    "ltrim",
    "max",
    "median",
    "min",
    "mod",
    "nth_value",
    "ntile",
    "nullif",
    "octet_length",
    "percent_rank",
    "percentile",
    "percentile_cont",
    "percentile_disc",
    "pi",
    "pow",
    "power",
    "printf",
    "quote",
    "radians",
    "random",
    "randomblob",
    "rank",
    "replace",
    "round",
    "row_number",
    "rtrim",
    "sign",
    "sin",
    "sinh",
    "soundex",
    "sqlite_version",
    "sqrt",
    "strftime",
    "string_agg",
    "substr",
    "substring",
    "subtype",
    "sum",
    "tan",
    "tanh",
    "time",
    "timediff",
    "total",
    "trim",
    "trunc",
    "typeof",
    "unhex",
    "unicode",
    "unistr",
    "unistr_quote",
    "unixepoch",
    "unlikely",
    "upper",
    "zeroblob",
});
static_assert(std::ranges::is_sorted(kOnlyCompute));

bool only_computes(const char* function) {
  if (function == nullptr) return false;
  std::string name = function;
  for (char& c : name) c = c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
  return std::ranges::binary_search(kOnlyCompute, std::string_view(name));
}

int of_foreign_database(void*, int action, const char*, const char* function, const char*,
                        const char*) {
  if (action == SQLITE_FUNCTION) return only_computes(function) ? SQLITE_OK : SQLITE_DENY;
  return action == SQLITE_RECURSIVE ? SQLITE_DENY : SQLITE_OK;
}

int of_user(void* refused, int action, const char*, const char* function, const char*,
            const char*) {
  if (action == SQLITE_FUNCTION && !only_computes(function)) {
    static_cast<std::string*>(refused)->assign(function == nullptr ? "" : function);
    return SQLITE_DENY;
  }
  const bool reads = action == SQLITE_SELECT || action == SQLITE_READ ||
                     action == SQLITE_FUNCTION || action == SQLITE_RECURSIVE;
  return reads ? SQLITE_OK : SQLITE_DENY;
}

}  // namespace

void distrust(sqlite3* database) {
  sqlite3_db_config(database, SQLITE_DBCONFIG_DEFENSIVE, 1, nullptr);
#if defined(SQLITE_DBCONFIG_TRUSTED_SCHEMA)
  sqlite3_db_config(database, SQLITE_DBCONFIG_TRUSTED_SCHEMA, 0, nullptr);
#endif
  sqlite3_limit(database, SQLITE_LIMIT_LENGTH, kMostBytes);
  sqlite3_set_authorizer(database, of_foreign_database, nullptr);
}

void allow_reading_only(sqlite3* database, std::string& refused) {
  sqlite3_limit(database, SQLITE_LIMIT_ATTACHED, 0);
  sqlite3_limit(database, SQLITE_LIMIT_LENGTH, kMostBytesOfUser);
  sqlite3_set_authorizer(database, of_user, &refused);
}

}  // namespace trainmon
