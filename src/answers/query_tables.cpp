// Virtual tables: SQLite asks, by functions in C, for one row after another.
#include "answers/query_tables.h"

#include <new>
#include <stdexcept>

#include "answers/query_cells.h"

namespace trainmon {
namespace {

struct TableOf : sqlite3_vtab {
  QueriedRun* run = nullptr;
  QueryRecords records = QueryRecords::rows;
};

struct Cursor : sqlite3_vtab_cursor {
  std::shared_ptr<const RunStream> stream;
  std::vector<ReadRow> rows;  // of the piece that is being gone through
  Columns columns;
  std::size_t next_piece = 0;
  std::size_t at = 0;
  bool at_end = true;
};

struct Registered {
  QueriedRun* run;
  QueryRecords records;
};

// No exception may pass through SQLite, which is C.
template <typename Action>
int guarded(sqlite3_vtab* table, const Action& action) {
  try {
    action();
    return SQLITE_OK;
  } catch (const std::bad_alloc&) {
    return SQLITE_NOMEM;
  } catch (const std::exception& error) {
    sqlite3_free(table->zErrMsg);
    table->zErrMsg = sqlite3_mprintf("%s", error.what());
    return SQLITE_ERROR;
  }
}

int connect(sqlite3* database, void* data, int, const char* const*, sqlite3_vtab** out,
            char** message) {
  const auto& registered = *static_cast<Registered*>(data);
  const std::string columns = query_columns(registered.records);
  const int code = sqlite3_declare_vtab(database, ("CREATE TABLE x(" + columns + ")").c_str());
  if (code != SQLITE_OK) {
    *message = sqlite3_mprintf("%s", sqlite3_errmsg(database));
    return code;
  }
  auto* table = new TableOf;
  table->run = registered.run;
  table->records = registered.records;
  *out = table;
  return SQLITE_OK;
}

int disconnect(sqlite3_vtab* table) {
  delete static_cast<TableOf*>(table);
  return SQLITE_OK;
}

// What each argument of filter() says, as digits of its name.
enum Term : char {
  kRank = 'r',
  kKind = 'k',
  kStepIs = '=',
  kFrom = '>',
  kTo = '<',
  kAfter = 'a',
  kBefore = 'b'
};

char term_of(const sqlite3_index_info::sqlite3_index_constraint& asked) {
  static const int rank = query_column("rank"), kind = query_column("kind"),
                   step = query_column("step");
  if (asked.usable == 0) return 0;
  const bool is = asked.op == SQLITE_INDEX_CONSTRAINT_EQ;
  if (asked.iColumn == rank) return is ? kRank : 0;
  if (asked.iColumn == kind) return is ? kKind : 0;
  if (asked.iColumn != step) return 0;
  switch (asked.op) {
    case SQLITE_INDEX_CONSTRAINT_EQ:
      return kStepIs;
    case SQLITE_INDEX_CONSTRAINT_GE:
      return kFrom;
    case SQLITE_INDEX_CONSTRAINT_LE:
      return kTo;
    case SQLITE_INDEX_CONSTRAINT_GT:
      return kAfter;
    case SQLITE_INDEX_CONSTRAINT_LT:
      return kBefore;
    default:
      return 0;
  }
}

// The statistics that the statement reads, a bit each in the order of stat_table().
int used_stats(const sqlite3_index_info& info) {
  static_assert(kFieldCount<decltype(kWideRow)> + kStatCount < 63, "SQLite has no bit for it");
  const auto stats = info.colUsed >> kFieldCount<decltype(kWideRow)>;
  return static_cast<int>(stats & ((1u << kStatCount) - 1));
}

Columns columns_of_bits(unsigned bits) {
  std::vector<Stat> stats;
  for (const StatDefinition& definition : stat_table()) {
    if ((bits >> static_cast<unsigned>(definition.stat) & 1) != 0) stats.push_back(definition.stat);
  }
  return columns_of(stats);
}

int best_index(sqlite3_vtab* table, sqlite3_index_info* info) {
  double cost = static_cast<TableOf*>(table)->records == QueryRecords::rows ? 1e8 : 1e3;
  std::string terms;
  if (static_cast<TableOf*>(table)->records == QueryRecords::rows) {
    for (int i = 0; i < info->nConstraint; ++i) {
      const char term = term_of(info->aConstraint[i]);
      if (term == 0) continue;
      // What other collations call equal, the reader does not.
      if (std::string_view(sqlite3_vtab_collation(info, i)) != "BINARY") continue;
      terms += term;
      info->aConstraintUsage[i].argvIndex = static_cast<int>(terms.size());
      cost /= term == kStepIs ? 1000 : 4;
    }
  }
  info->idxNum = used_stats(*info);
  info->estimatedCost = cost;
  info->estimatedRows = static_cast<sqlite3_int64>(cost / 10);
  info->idxStr = sqlite3_mprintf("%s", terms.c_str());
  info->needToFreeIdxStr = 1;
  return info->idxStr == nullptr ? SQLITE_NOMEM : SQLITE_OK;
}

int open_cursor(sqlite3_vtab*, sqlite3_vtab_cursor** out) {
  *out = new Cursor;
  return SQLITE_OK;
}

int close_cursor(sqlite3_vtab_cursor* cursor) {
  delete static_cast<Cursor*>(cursor);
  return SQLITE_OK;
}

// Fills the cursor with the next piece that has rows.
void next_piece(Cursor& cursor, QueriedRun& run) {
  cursor.rows.clear();
  cursor.at = 0;
  const auto& pieces = cursor.stream->pieces();
  while (cursor.rows.empty() && cursor.next_piece < pieces.size()) {
    RunStream::Take take;
    take.row = [&](const ReadRow& row) { cursor.rows.push_back(row); };
    take.columns = cursor.columns;
    cursor.stream->read(pieces[cursor.next_piece++], take, run.damage());
  }
  cursor.at_end = cursor.rows.empty();
}

// nullopt: no row can be meant. SQLite looks at every row again, so a bound that is no whole number
// may be left out.
std::optional<WantedRows> wanted_by(const QueriedRun& run, const char* terms,
                                    sqlite3_value** values) {
  WantedRows wanted;
  for (std::size_t i = 0; terms[i] != '\0'; ++i) {
    if (terms[i] == kKind) {
      if (sqlite3_value_type(values[i]) != SQLITE_TEXT) continue;
      wanted.kind = reinterpret_cast<const char*>(sqlite3_value_text(values[i]));
      if (!run.has_kind(*wanted.kind)) return std::nullopt;
      continue;
    }
    if (sqlite3_value_type(values[i]) != SQLITE_INTEGER) continue;
    const std::int64_t value = sqlite3_value_int64(values[i]);
    const auto not_before = [&](std::int64_t step) {
      wanted.first_step = std::max(wanted.first_step.value_or(step), step);
    };
    const auto not_after = [&](std::int64_t step) {
      wanted.last_step = std::min(wanted.last_step.value_or(step), step);
    };
    if (terms[i] == kRank) {
      if (std::ranges::find(run.facts().ranks, value) == run.facts().ranks.end()) {
        return std::nullopt;
      }
      wanted.rank = value;
    }
    if (terms[i] == kStepIs || terms[i] == kFrom || terms[i] == kAfter) not_before(value);
    if (terms[i] == kStepIs || terms[i] == kTo || terms[i] == kBefore) not_after(value);
  }
  return wanted;
}

int filter(sqlite3_vtab_cursor* base, int stats, const char* terms, int, sqlite3_value** values) {
  auto& cursor = *static_cast<Cursor*>(base);
  auto& table = *static_cast<TableOf*>(base->pVtab);
  return guarded(base->pVtab, [&] {
    cursor.at = 0;
    cursor.next_piece = 0;
    cursor.at_end = true;
    if (table.records != QueryRecords::rows) {
      cursor.at_end = record_count(table.run->facts(), table.records) == 0;
      return;
    }
    const std::optional<WantedRows> wanted = wanted_by(*table.run, terms, values);
    if (!wanted) return;
    cursor.stream = table.run->rows(*wanted);
    cursor.columns = columns_of_bits(static_cast<unsigned>(stats));
    next_piece(cursor, *table.run);
  });
}

int next_row(sqlite3_vtab_cursor* base) {
  auto& cursor = *static_cast<Cursor*>(base);
  auto& table = *static_cast<TableOf*>(base->pVtab);
  ++cursor.at;
  if (table.records != QueryRecords::rows) {
    cursor.at_end = cursor.at >= record_count(table.run->facts(), table.records);
    return SQLITE_OK;
  }
  if (cursor.at < cursor.rows.size()) return SQLITE_OK;
  return guarded(base->pVtab, [&] { next_piece(cursor, *table.run); });
}

int is_at_end(sqlite3_vtab_cursor* cursor) {
  return static_cast<Cursor*>(cursor)->at_end ? 1 : 0;
}

int column_of(sqlite3_vtab_cursor* base, sqlite3_context* context, int column) {
  const auto& cursor = *static_cast<Cursor*>(base);
  const auto& table = *static_cast<TableOf*>(base->pVtab);
  return guarded(base->pVtab, [&] {
    if (table.records != QueryRecords::rows) {
      return answer_record(context, table.run->facts(), table.records, cursor.at, column);
    }
    const ReadRow& row = cursor.rows[cursor.at];
    answer_row(context, row, cursor.stream->facts().series[row.series], column);
  });
}

// The same for a row in every scan, whatever is selected: SQLite tells by it which rows of two
// scans are one, for OR.
int row_number(sqlite3_vtab_cursor* base, sqlite3_int64* out) {
  const auto& cursor = *static_cast<Cursor*>(base);
  auto& table = *static_cast<TableOf*>(base->pVtab);
  return guarded(base->pVtab, [&] {
    *out = table.records == QueryRecords::rows ? table.run->row_number(cursor.rows[cursor.at])
                                               : static_cast<sqlite3_int64>(cursor.at);
  });
}

// Without xCreate a module is its own only table.
sqlite3_module module_of_tables() {
  sqlite3_module module{};
  module.xConnect = connect;
  module.xBestIndex = best_index;
  module.xDisconnect = disconnect;
  module.xOpen = open_cursor;
  module.xClose = close_cursor;
  module.xFilter = filter;
  module.xNext = next_row;
  module.xEof = is_at_end;
  module.xColumn = column_of;
  module.xRowid = row_number;
  return module;
}

}  // namespace

void add_query_tables(sqlite3* database, QueriedRun& run) {
  static const sqlite3_module module = module_of_tables();
  for (const QueryTable& table : query_tables()) {
    const auto forget = [](void* registered) { delete static_cast<Registered*>(registered); };
    sqlite3_create_module_v2(database, table.name, &module, new Registered{&run, table.records},
                             forget);
    // Declares its columns, which the statement itself has no right to.
    const std::string first = std::string("SELECT 1 FROM ") + table.name;
    sqlite3_exec(database, (first + " LIMIT 0").c_str(), nullptr, nullptr, nullptr);
  }
}

}  // namespace trainmon
