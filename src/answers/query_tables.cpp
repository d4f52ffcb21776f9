// Virtual tables: SQLite asks, by functions in C, for one row after another.
#include "answers/query_tables.h"

#include <array>
#include <cstring>
#include <stdexcept>

#include "base/text.h"
#include "sinks/table.h"

namespace trainmon {
namespace {

void answer_text(sqlite3_context* context, std::string_view text) {
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t length = decode_utf8(text, at).length;
    if (length == 0) {
      sqlite3_result_blob64(context, text.data(), text.size(), SQLITE_TRANSIENT);
      return;
    }
    at += length;
  }
  sqlite3_result_text64(context, text.empty() ? "" : text.data(), text.size(), SQLITE_TRANSIENT,
                        SQLITE_UTF8);
}

void answer(sqlite3_context* context, const SqlValue& value) {
  if (const auto* whole = std::get_if<std::int64_t>(&value)) {
    sqlite3_result_int64(context, *whole);
  } else if (const auto* real = std::get_if<double>(&value)) {
    sqlite3_result_double(context, *real);  // NaN becomes NULL
  } else if (const auto* text = std::get_if<std::string>(&value)) {
    answer_text(context, *text);
  } else {
    sqlite3_result_null(context);
  }
}

// --- tables
// ---------------------------------------------------------------------------------------

enum class Source : std::uint8_t { stats, logged, declared, alerts, gaps };
struct Table {
  const char* name;
  Source source;
  const char* columns;  // of those that are not the wide table
};
constexpr std::array<Table, 6> kTables = {{
    {"stats", Source::stats, ""},
    {"rows", Source::stats, ""},
    {"logged", Source::logged,
     "restart INTEGER, rank INTEGER, step INTEGER, name TEXT, value REAL"},
    {"declared", Source::declared,
     "restart INTEGER, rank INTEGER, step INTEGER, optimizer INTEGER, param_group INTEGER, "
     "name TEXT, value, type TEXT, window INTEGER"},
    {"alerts", Source::alerts,
     "restart INTEGER, rank INTEGER, rule TEXT, kind TEXT, name TEXT, element TEXT, step INTEGER, "
     "seq INTEGER, stat TEXT, value REAL, expected REAL, count INTEGER, message TEXT"},
    {"gaps", Source::gaps,
     "restart INTEGER, rank INTEGER, reason TEXT, rows INTEGER, first_seq INTEGER, "
     "last_seq INTEGER"},
}};

std::string wide_columns() {
  std::string text;
  for (const TableColumn& column : key_columns()) {
    text += std::string(column.name) + (column.type == CellType::integer ? " INTEGER, "
                                        : column.type == CellType::real  ? " REAL, "
                                                                         : " TEXT, ");
  }
  for (const std::string& name : all_stat_names()) {
    text += "\"" + name + "\"" + (is_count(name) ? " INTEGER, " : " REAL, ");
  }
  text.resize(text.size() - 2);
  return text;
}

// Names of key columns that decide what is read, by their place.
int key_column(std::string_view name) {
  const auto columns = key_columns();
  const auto at = std::ranges::find(columns, name, &TableColumn::name);
  return static_cast<int>(at - columns.begin());
}

SqlValue wide_cell(const ReadRow& row, const Series& series, int column) {
  using std::int64_t;
  switch (column) {
    case 0:
      return int64_t{row.restart};
    case 1:
      return int64_t{row.rank};
    case 2:
      return series.kind;
    case 3:
      return int64_t{series.chunk};
    case 4:
      return series.name;
    case 5:
      return series.element;
    case 6:
      return int64_t{series.optimizer};
    case 7:
      return int64_t{row.step};
    case 8:
      return int64_t{row.attempt};
    case 9:
      return int64_t{row.micro_step};
    case 10:
      return int64_t{row.call};
    case 11:
      return static_cast<int64_t>(row.seq);
    case 12:
      return int64_t{row.flags};
    case 13:
      return int64_t{row.window};
    case 14:
      return int64_t{row.accum};
    case 15:
      return std::string(fate_name(row.fate));
    case 16:
      return row.loss_scale;
    case 17:
      return std::string(dtype_name(series.dtype));
    case 18:
      return std::string(replication_name(series.replication));
    case 19:
      return row.shape == nullptr ? SqlValue() : shape_text(row.shape);
    default:
      break;
  }
  const StatDefinition& statistic =
      stat_table()[static_cast<std::size_t>(column) - key_columns().size()];
  const double value = derive(statistic.stat, row.state);
  if (statistic.type == "int64") return static_cast<int64_t>(value);
  return value;
}

SqlValue small_cell(const RunRows& facts, Source source, std::size_t index, int column) {
  const auto pick = [column](auto... cells) {
    const std::array<SqlValue, sizeof...(cells)> all = {SqlValue(std::move(cells))...};
    return all[static_cast<std::size_t>(column)];
  };
  using std::int64_t;
  if (source == Source::logged) {
    const ReadScalar& s = facts.scalars[index];
    return pick(int64_t{s.restart}, int64_t{s.rank}, s.step, s.name, s.value);
  }
  if (source == Source::declared) {
    const ReadDeclared& d = facts.declared[index];
    SqlValue value;  // NULL: not known
    if (d.value.type == DeclaredValue::Type::number) value = d.value.number;
    if (d.value.type == DeclaredValue::Type::text) value = d.value.text;
    return pick(int64_t{d.restart}, int64_t{d.rank}, d.step, int64_t{d.optimizer}, int64_t{d.group},
                d.value.name, value, std::string(declared_type_name(d.value.type)), d.window);
  }
  if (source == Source::gaps) {
    const ReadGap& g = facts.gaps[index];
    return pick(int64_t{g.restart}, int64_t{g.rank}, g.gap.reason, g.gap.rows,
                static_cast<int64_t>(g.gap.first_seq), static_cast<int64_t>(g.gap.last_seq));
  }
  const ReadAlert& a = facts.alerts[index];
  const Series& series = facts.series[a.alert.key.series];
  return pick(int64_t{a.restart}, int64_t{a.rank}, a.alert.rule, series.kind, series.name,
              series.element, a.alert.step, static_cast<int64_t>(a.alert.key.seq), a.alert.stat,
              a.alert.value, a.alert.expected, a.alert.count, a.alert.message);
}

std::size_t small_size(const RunRows& facts, Source source) {
  if (source == Source::logged) return facts.scalars.size();
  if (source == Source::declared) return facts.declared.size();
  return source == Source::gaps ? facts.gaps.size() : facts.alerts.size();
}

// --- SQLite's view of them -----------------------------------------------------------------------

struct TableOf : sqlite3_vtab {
  QueriedRun* run = nullptr;
  Source source = Source::stats;
};

struct Cursor : sqlite3_vtab_cursor {
  std::shared_ptr<const RunStream> stream;
  std::vector<ReadRow> rows;  // of the piece that is being gone through
  std::size_t next_piece = 0;
  std::size_t at = 0;
  bool at_end = true;
};

struct Registered {
  QueriedRun* run;
  const Table* table;
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
  const bool is_wide = registered.table->source == Source::stats;
  const std::string columns = is_wide ? wide_columns() : registered.table->columns;
  const int code = sqlite3_declare_vtab(database, ("CREATE TABLE x(" + columns + ")").c_str());
  if (code != SQLITE_OK) {
    *message = sqlite3_mprintf("%s", sqlite3_errmsg(database));
    return code;
  }
  auto* table = new TableOf;
  table->run = registered.run;
  table->source = registered.table->source;
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
  static const int rank = key_column("rank"), kind = key_column("kind"), step = key_column("step");
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

int best_index(sqlite3_vtab* table, sqlite3_index_info* info) {
  double cost = static_cast<TableOf*>(table)->source == Source::stats ? 1e8 : 1e3;
  std::string terms;
  if (static_cast<TableOf*>(table)->source == Source::stats) {
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

int filter(sqlite3_vtab_cursor* base, int, const char* terms, int, sqlite3_value** values) {
  auto& cursor = *static_cast<Cursor*>(base);
  auto& table = *static_cast<TableOf*>(base->pVtab);
  return guarded(base->pVtab, [&] {
    cursor.at = 0;
    cursor.next_piece = 0;
    cursor.at_end = true;
    if (table.source != Source::stats) {
      cursor.at_end = small_size(table.run->facts(), table.source) == 0;
      return;
    }
    const std::optional<WantedRows> wanted = wanted_by(*table.run, terms, values);
    if (!wanted) return;
    cursor.stream = table.run->rows(*wanted);
    next_piece(cursor, *table.run);
  });
}

int next_row(sqlite3_vtab_cursor* base) {
  auto& cursor = *static_cast<Cursor*>(base);
  auto& table = *static_cast<TableOf*>(base->pVtab);
  ++cursor.at;
  if (table.source != Source::stats) {
    cursor.at_end = cursor.at >= small_size(table.run->facts(), table.source);
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
    if (table.source != Source::stats) {
      return answer(context, small_cell(table.run->facts(), table.source, cursor.at, column));
    }
    const ReadRow& row = cursor.rows[cursor.at];
    answer(context, wide_cell(row, cursor.stream->facts().series[row.series], column));
  });
}

int row_number(sqlite3_vtab_cursor* cursor, sqlite3_int64* out) {
  *out = static_cast<sqlite3_int64>(static_cast<Cursor*>(cursor)->at);
  return SQLITE_OK;
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
  for (const Table& table : kTables) {
    const auto forget = [](void* registered) { delete static_cast<Registered*>(registered); };
    sqlite3_create_module_v2(database, table.name, &module, new Registered{&run, &table}, forget);
    // Declares its columns, which the statement itself has no right to.
    const std::string first = std::string("SELECT 1 FROM ") + table.name;
    sqlite3_exec(database, (first + " LIMIT 0").c_str(), nullptr, nullptr, nullptr);
  }
}

}  // namespace trainmon
