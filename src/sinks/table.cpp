// The one list of columns that every wide table has.
#include "sinks/table.h"

namespace trainmon {
namespace {

constexpr std::array<TableColumn, 19> kKeyColumns = {{
    {"restart", CellType::integer},   {"rank", CellType::integer},
    {"kind", CellType::text},         {"chunk", CellType::integer},
    {"name", CellType::text},         {"element", CellType::text},
    {"optimizer", CellType::integer}, {"step", CellType::integer},
    {"attempt", CellType::integer},   {"micro_step", CellType::integer},
    {"call", CellType::integer},      {"seq", CellType::integer},
    {"flags", CellType::integer},     {"window", CellType::integer},
    {"accum", CellType::integer},     {"fate", CellType::text},
    {"loss_scale", CellType::real},   {"dtype", CellType::text},
    {"replication", CellType::text},
}};

}  // namespace

std::span<const TableColumn> key_columns() {
  return kKeyColumns;
}

const std::vector<std::string>& all_stat_names() {
  static const std::vector<std::string> names = [] {
    std::vector<std::string> all;
    for (const StatDefinition& definition : stat_table()) all.emplace_back(definition.name);
    return all;
  }();
  return names;
}

bool is_count(std::string_view statistic) {
  const std::optional<Stat> stat = stat_from_name(statistic);
  return stat && stat_table()[static_cast<std::size_t>(*stat)].type == "int64";
}

}  // namespace trainmon
