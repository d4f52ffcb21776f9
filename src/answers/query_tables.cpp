// Virtual tables: SQLite asks, by functions in C, for one row after another.
#include "answers/query_tables.h"

#include <charconv>
#include <new>
#include <stdexcept>

#include "answers/query_cells.h"
#include "answers/query_rows.h"
#include "base/made_ahead.h"

namespace trainmon {
namespace {

struct TableOf : sqlite3_vtab {
  QueriedRun* run = nullptr;
  QueryRecords records = QueryRecords::rows;
};

// What best_index() tells filter(), as the text "terms used order".
struct Plan {
  std::string terms;             // what each argument of filter() says
  UsedColumns used = 0;          // columns that the statement reads
  std::vector<OrderTerm> order;  // that the rows come in; empty: as they were written
};

struct PieceRows {
  QueryRows rows;
  std::vector<Damage> damage;
};

struct Cursor : sqlite3_vtab_cursor {
  std::shared_ptr<const RunStream> stream;
  Plan plan;
  std::optional<QueryRows> rows;  // of a piece, or all of them in the order of the plan
  std::optional<MadeAhead<PieceRows>> pieces;
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

// Columns that number a row.
const UsedColumns kNumbering = UsedColumns{1} << query_column("rank") |
                               UsedColumns{1} << query_column("restart") |
                               UsedColumns{1} << query_column("seq");

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

std::string text_of(const Plan& plan) {
  std::string text = plan.terms + " " + std::to_string(plan.used);
  for (const OrderTerm& term : plan.order) {
    text += (term.descending ? " -" : " +") + std::to_string(term.column);
  }
  return text;
}

Plan plan_of(std::string_view text) {
  Plan plan;
  const auto word = [&] {
    const std::string_view taken = text.substr(0, text.find(' '));
    text.remove_prefix(std::min(text.size(), taken.size() + 1));
    return taken;
  };
  const auto number = [](std::string_view digits, auto& value) {
    std::from_chars(digits.data(), digits.data() + digits.size(), value);
  };
  plan.terms = word();
  number(word(), plan.used);
  while (!text.empty()) {
    const std::string_view term = word();
    OrderTerm& added = plan.order.emplace_back();
    number(term.substr(1), added.column);
    added.descending = term.front() == '-';
  }
  return plan;
}

// The order that a statement asks for, where rows can come in it without SQLite's sorting. It
// must be of columns of series, and so many rows must fit in memory.
std::vector<OrderTerm> order_given(const sqlite3_index_info& info, const QueriedRun& run) {
  constexpr std::size_t kSortedBytes = std::size_t{1} << 26;
  const std::size_t rows = kSortedBytes / QueryRows::bytes_of_row(info.colUsed);
  if (run.row_count() > static_cast<std::int64_t>(rows)) return {};
  std::vector<OrderTerm> order;
  for (int i = 0; i < info.nOrderBy; ++i) {
    const auto& term = info.aOrderBy[i];
    if (term.iColumn < 0 || !QueryRows::is_of_series(term.iColumn)) return {};
    order.push_back({term.iColumn, term.desc != 0});
  }
  return order;
}

int best_index(sqlite3_vtab* base, sqlite3_index_info* info) {
  const auto& table = *static_cast<TableOf*>(base);
  double cost = table.records == QueryRecords::rows ? 1e8 : 1e3;
  Plan plan;
  if (table.records == QueryRecords::rows) {
    for (int i = 0; i < info->nConstraint; ++i) {
      const char term = term_of(info->aConstraint[i]);
      if (term == 0) continue;
      // What other collations call equal, the reader does not.
      if (std::string_view(sqlite3_vtab_collation(info, i)) != "BINARY") continue;
      plan.terms += term;
      info->aConstraintUsage[i].argvIndex = static_cast<int>(plan.terms.size());
      cost /= term == kStepIs ? 1000 : 4;
    }
    plan.used = info->colUsed;
    plan.order = order_given(*info, *table.run);
    info->orderByConsumed = plan.order.empty() ? 0 : 1;
  }
  info->estimatedCost = cost;
  info->estimatedRows = static_cast<sqlite3_int64>(cost / 10);
  info->idxStr = sqlite3_mprintf("%s", text_of(plan).c_str());
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

// Has the pieces read from `first` on, ahead of those that are asked for.
void begin_pieces(Cursor& cursor, const QueriedRun& run, std::size_t first) {
  cursor.rows.reset();
  cursor.pieces.reset();
  cursor.next_piece = first;
  const RunStream& stream = *cursor.stream;
  const auto read = [&stream, used = cursor.plan.used, first](std::size_t i) {
    PieceRows piece{QueryRows(stream.facts().series, used), {}};
    RunStream::Take take;
    take.row = [&](const ReadRow& row) { piece.rows.add(row); };
    take.columns = piece.rows.columns();
    stream.read(stream.pieces()[first + i], take, piece.damage);
    return piece;
  };
  cursor.pieces.emplace(stream.pieces().size() - first, run.threads(), read);
}

std::optional<QueryRows> next_rows(Cursor& cursor, QueriedRun& run) {
  std::optional<PieceRows> piece = cursor.pieces->next();
  if (!piece) return std::nullopt;
  ++cursor.next_piece;
  run.damage().insert(run.damage().end(), piece->damage.begin(), piece->damage.end());
  return std::move(piece->rows);
}

// The rows of the next piece that has some; those of all pieces, where the plan has another order.
void read_next(Cursor& cursor, QueriedRun& run) {
  cursor.at = 0;
  do {
    cursor.rows = next_rows(cursor, run);
  } while (cursor.rows && cursor.rows->size() == 0);
  if (cursor.rows && !cursor.plan.order.empty()) {
    while (const std::optional<QueryRows> more = next_rows(cursor, run)) cursor.rows->add(*more);
    cursor.rows->sort(cursor.plan.order);
  }
  cursor.at_end = !cursor.rows;
}

// Reads the rows of the cursor again, with more columns.
void read_again(Cursor& cursor, QueriedRun& run, UsedColumns more) {
  const std::size_t rows = cursor.rows->size(), at = cursor.at;
  cursor.plan.used |= more;
  begin_pieces(cursor, run, cursor.plan.order.empty() ? cursor.next_piece - 1 : 0);
  read_next(cursor, run);
  cursor.at = at;
  if (!cursor.rows || cursor.rows->size() != rows) {
    throw std::runtime_error("the run changes while it is read");
  }
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

int filter(sqlite3_vtab_cursor* base, int, const char* plan, int, sqlite3_value** values) {
  auto& cursor = *static_cast<Cursor*>(base);
  auto& table = *static_cast<TableOf*>(base->pVtab);
  return guarded(base->pVtab, [&] {
    cursor.at = 0;
    cursor.at_end = true;
    if (table.records != QueryRecords::rows) {
      cursor.at_end = table.run->record_count(table.records) == 0;
      return;
    }
    cursor.plan = plan_of(plan);
    const std::optional<WantedRows> wanted =
        wanted_by(*table.run, cursor.plan.terms.c_str(), values);
    if (!wanted) return;
    cursor.pieces.reset();  // which belong to the stream, as the rows do
    cursor.rows.reset();
    cursor.stream = table.run->rows(*wanted);
    begin_pieces(cursor, *table.run, 0);
    read_next(cursor, *table.run);
  });
}

int next_row(sqlite3_vtab_cursor* base) {
  auto& cursor = *static_cast<Cursor*>(base);
  auto& table = *static_cast<TableOf*>(base->pVtab);
  ++cursor.at;
  if (table.records != QueryRecords::rows) {
    cursor.at_end = cursor.at >= table.run->record_count(table.records);
    return SQLITE_OK;
  }
  if (cursor.at < cursor.rows->size()) return SQLITE_OK;
  return guarded(base->pVtab, [&] { read_next(cursor, *table.run); });
}

int is_at_end(sqlite3_vtab_cursor* cursor) {
  return static_cast<Cursor*>(cursor)->at_end ? 1 : 0;
}

int column_of(sqlite3_vtab_cursor* base, sqlite3_context* context, int column) {
  const auto& cursor = *static_cast<Cursor*>(base);
  const auto& table = *static_cast<TableOf*>(base->pVtab);
  return guarded(base->pVtab, [&] {
    if (table.records == QueryRecords::samples) {
      return answer_sample(context, table.run->facts(), table.run->samples()[cursor.at], column);
    }
    if (table.records != QueryRecords::rows) {
      return answer_record(context, table.run->facts(), table.records, cursor.at, column);
    }
    cursor.rows->answer(context, cursor.at, column);
  });
}

// The same for a row in every scan, whatever is selected: SQLite tells by it which rows of two
// scans are one, for OR. It says too late that it wants them: rows are read again.
int row_number(sqlite3_vtab_cursor* base, sqlite3_int64* out) {
  auto& cursor = *static_cast<Cursor*>(base);
  auto& table = *static_cast<TableOf*>(base->pVtab);
  return guarded(base->pVtab, [&] {
    *out = static_cast<sqlite3_int64>(cursor.at);
    if (table.records != QueryRecords::rows) return;
    if ((cursor.plan.used & kNumbering) != kNumbering) read_again(cursor, *table.run, kNumbering);
    *out = table.run->row_number(cursor.rows->place(cursor.at));
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
