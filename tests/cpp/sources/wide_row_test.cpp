// What a table holds of a field comes back to the last bit from every format, fingerprints above
// all: 64 bits that no double has. The row has one more field than those of trainmon.
#include "model/wide_row.h"

#include <gtest/gtest.h>
#include <sqlite3.h>

#include <limits>
#include <nlohmann/json.hpp>
#include <vector>

#include "answers/query_cells.h"
#include "convert/json_line.h"
#include "read/sqlite_answer.h"
#include "scratch.h"
#include "sinks/csv_text.h"
#include "sinks/sqlite_file.h"
#include "sources/csv_columns.h"
#include "sources/row_members.h"

namespace trainmon {
namespace {

struct OwnRow : RowPlace {
  std::optional<Fingerprint> print;
  double loss = 0.0;
};
constexpr auto kOwnRow =
    std::tuple_cat(kWideRow, std::tuple{Field{"print", &OwnRow::print, InAnswer::no},
                                        Field{"loss", &OwnRow::loss, InAnswer::no}});

// The widest, what a double rounds, what is negative as a signed number, what looks like another
// number, and none.
std::vector<std::optional<Fingerprint>> prints() {
  std::vector<std::optional<Fingerprint>> all;
  for (const std::uint64_t bits :
       {std::numeric_limits<std::uint64_t>::max(), (std::uint64_t{1} << 53) + 1,
        std::uint64_t{1} << 63, std::uint64_t{0}, std::uint64_t{1},
        std::uint64_t{0x12e4567890123456}, std::uint64_t{0x1234567890123456}}) {
    all.emplace_back(static_cast<Fingerprint>(bits));
  }
  all.emplace_back();
  return all;
}

class WideRow : public testing::Test {
 protected:
  WideRow() {
    series_.kind = "grad_reduced";
    series_.name = "a,\"b\"\nc";
    series_.element = "0x00";
    series_.chunk = -3;
    series_.optimizer = 2;
    series_.dtype = DType::bfloat16;
    series_.replication = Replication::disjoint;
    for (const auto& print : prints()) {
      OwnRow row;
      row.restart = 1;
      row.rank = std::numeric_limits<std::int32_t>::min();
      row.step = (std::int64_t{1} << 53) + 1;
      row.seq = std::numeric_limits<std::uint64_t>::max();
      row.flags = std::numeric_limits<std::uint32_t>::max();
      row.window = std::numeric_limits<std::int64_t>::min();
      row.fate = Fate::skipped;
      row.loss_scale = 0.1;
      row.shape = print ? &shape_ : nullptr;
      row.print = print;
      row.loss = 1.0 / 3.0;
      rows_.push_back(row);
    }
  }

  // Puts every field of a row, in turn.
  void put(const OwnRow& row, const auto& put_one) const {
    for_each_field(kOwnRow, [&](const auto& field) {
      put_cell(field.of(row, series_), [&](auto cell) { put_one(field.name, cell); });
    });
  }
  // Takes one back by take_one(name, member) and holds it against what was put.
  void expect_back(const OwnRow& row, const auto& take_one) {
    OwnRow back;
    Series of;
    for_each_field(kOwnRow, [&]<typename Owner, typename T>(const Field<Owner, T>& field) {
      if constexpr (std::is_same_v<Owner, Series>) {
        take_one(field.name, of.*field.member);
        EXPECT_EQ(of.*field.member, series_.*field.member) << field.name;
      } else {
        take_one(field.name, back.*field.member);
        if constexpr (std::is_same_v<T, const Shape*>) {
          EXPECT_EQ(shape_text(back.*field.member), shape_text(row.*field.member));
        } else {
          EXPECT_EQ(back.*field.member, row.*field.member) << field.name;
        }
      }
    });
  }

  const Shape shape_ = {2, 3};
  Series series_;
  std::vector<OwnRow> rows_;
  KeptShapes shapes_;
  Scratch scratch_;
};

TEST_F(WideRow, FingerprintsAreTheirTexts) {
  EXPECT_EQ(fingerprint_text(static_cast<Fingerprint>(~std::uint64_t{0})), "0xffffffffffffffff");
  EXPECT_EQ(fingerprint_text(static_cast<Fingerprint>((std::uint64_t{1} << 53) + 1)),
            "0x0020000000000001");
  for (const auto& print : prints()) {
    if (!print) continue;
    EXPECT_EQ(fingerprint_from(fingerprint_text(*print)), print);
  }
  for (const char* const none :
       {"", "0x", "18446744073709551615", "0xfffffffffffffff", "0xfffffffffffffffff",
        "0x-00000000000001", "1.8446744073709552e19", "0xfffffffffffffffg", "ffffffffffffffffff"}) {
    EXPECT_EQ(fingerprint_from(none), std::nullopt) << none;
  }
}

TEST_F(WideRow, CsvGivesBackEveryBit) {
  std::string text;
  csv_text::Line names(text);
  for (const std::string_view name : field_names(kOwnRow)) names.field(name);
  names.end();
  for (const OwnRow& row : rows_) {
    csv_text::Line line(text, csv_text::Cells::safe);
    put(row, [&](std::string_view, auto cell) { line.cell(cell); });
    line.end();
  }
  CsvRecords records(text);
  ASSERT_TRUE(records.next());
  const CsvColumns columns(records.fields());
  for (const OwnRow& row : rows_) {
    ASSERT_TRUE(records.next());
    std::string fault;
    expect_back(row, [&](std::string_view name, auto& member) {
      columns.member(records, name, member, shapes_, fault);
    });
    EXPECT_EQ(fault, "");
  }
  EXPECT_FALSE(records.next());
}

TEST_F(WideRow, CsvNamesWhatIsNoFingerprint) {
  const std::string text = "print,flags\n18446744073709551615,4294967296\n";
  CsvRecords records(text);
  ASSERT_TRUE(records.next());
  const CsvColumns columns(records.fields());
  ASSERT_TRUE(records.next());
  std::string fault;
  std::optional<Fingerprint> print;
  columns.member(records, "print", print, shapes_, fault);
  EXPECT_EQ(fault, "print '18446744073709551615' is none");
  std::uint32_t flags = 0;
  columns.member(records, "flags", flags, shapes_, fault);
  EXPECT_EQ(fault, "flags 4294967296 is out of its range");
}

TEST_F(WideRow, JsonHasFingerprintsAsTexts) {
  for (const OwnRow& row : rows_) {
    std::string text;
    JsonLine line(text);
    put(row, [&](std::string_view name, auto cell) { line.cell(name, cell); });
    line.end();
    const nlohmann::json read = nlohmann::json::parse(text);
    EXPECT_EQ(read["step"], row.step);
    EXPECT_EQ(read["loss"], row.loss);
    ASSERT_EQ(read.contains("print"), row.print.has_value());
    if (!row.print) continue;
    EXPECT_EQ(fingerprint_from(read["print"].get<std::string>()), row.print);
  }
}

TEST_F(WideRow, SqliteGivesBackEveryBit) {
  const std::filesystem::path path = scratch_.path() / "own.db";
  {
    Database database(path);
    std::string columns, places;
    for_each_field(kOwnRow, [&]<typename Owner, typename T>(const Field<Owner, T>& field) {
      columns += (columns.empty() ? "" : ", ") + std::string(field.name) + " " +
                 std::string(sql_type(cell_type<T>()));
      places += places.empty() ? "?" : ",?";
    });
    database.run("CREATE TABLE own (" + columns + ")");
    Statement add = database.prepare("INSERT INTO own VALUES (" + places + ")");
    for (const OwnRow& row : rows_) {
      put(row, [&](std::string_view, auto cell) { add.cell(cell); });
      add.run();
    }
  }
  const SqliteConnection database = open_database(path);
  SqliteAnswer answer(database.get(), "SELECT * FROM own", path);
  for (const OwnRow& row : rows_) {
    ASSERT_TRUE(answer.next());
    SqliteMembers members(answer, 0);
    expect_back(row, [&](std::string_view, auto& member) { members.read(member, shapes_); });
    EXPECT_EQ(members.fault(), "");
  }
  SqliteAnswer found(database.get(),
                     "SELECT count(*) FROM own a JOIN own b ON a.print = b.print WHERE "
                     "a.print = '0xffffffffffffffff' AND typeof(a.print) = 'text'",
                     path);
  ASSERT_TRUE(found.next());
  EXPECT_EQ(found.integer(0), 1);
}

TEST_F(WideRow, SqliteNamesWhatIsNoFingerprint) {
  const std::filesystem::path path = scratch_.path() / "own.db";
  {
    Database database(path);
    database.run("CREATE TABLE own (print); INSERT INTO own VALUES (9007199254740993)");
  }
  const SqliteConnection database = open_database(path);
  SqliteAnswer answer(database.get(), "SELECT print FROM own", path);
  ASSERT_TRUE(answer.next());
  SqliteMembers members(answer, 0);
  std::optional<Fingerprint> print;
  members.read(print, shapes_);
  EXPECT_EQ(members.fault(), "print '9007199254740993' is none");
}

// own(row, column): the cell as the tables of `query` answer with it.
TEST_F(WideRow, QueryAnswersWithEveryBit) {
  sqlite3* made = nullptr;
  ASSERT_EQ(sqlite3_open(":memory:", &made), SQLITE_OK);
  const SqliteConnection database(made);
  struct Own {
    const std::vector<OwnRow>& rows;
    const Series& series;
  } own{rows_, series_};
  const auto cell = [](sqlite3_context* context, int, sqlite3_value** values) {
    const auto& of = *static_cast<Own*>(sqlite3_user_data(context));
    const OwnRow& row = of.rows[static_cast<std::size_t>(sqlite3_value_int(values[0]))];
    use_field(kOwnRow, static_cast<std::size_t>(sqlite3_value_int(values[1])),
              [&](const auto& field) { put_cell(field.of(row, of.series), Answer{context}); });
  };
  ASSERT_EQ(sqlite3_create_function(made, "own", 2, SQLITE_UTF8, &own, cell, nullptr, nullptr),
            SQLITE_OK);
  for (std::size_t i = 0; i < rows_.size(); ++i) {
    std::string columns;
    for (std::size_t c = 0; c < kFieldCount<decltype(kOwnRow)>; ++c) {
      columns += (c == 0 ? "" : ", ") + std::string("own(") + std::to_string(i) + ", " +
                 std::to_string(c) + ")";
    }
    const std::filesystem::path none;
    SqliteAnswer answer(made, "SELECT " + columns, none);
    ASSERT_TRUE(answer.next());
    SqliteMembers members(answer, 0);
    expect_back(rows_[i], [&](std::string_view, auto& member) { members.read(member, shapes_); });
    EXPECT_EQ(members.fault(), "");
  }
}

}  // namespace
}  // namespace trainmon
