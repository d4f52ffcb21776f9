// A module of Python for test_wide_row.py: rows with one more field than those of trainmon, as
// columns and as the bindings make them.
#include <Python.h>

#include <cstdio>

#include "columns.h"

namespace nb = nanobind;

namespace trainmon {

struct OwnRow : RowPlace {
  std::string name;
  std::optional<Fingerprint> print;
};
constexpr std::tuple kOwnRow{
    Field{"restart", &RowPlace::restart, InAnswer::no},
    Field{"rank", &RowPlace::rank, InAnswer::no},
    Field{"kind", &OwnRow::name, InAnswer::no},
    Field{"chunk", &RowPlace::call, InAnswer::no},
    Field{"name", &OwnRow::name, InAnswer::no},
    Field{"element", &OwnRow::name, InAnswer::no},
    Field{"step", &RowPlace::step, InAnswer::no},
    Field{"attempt", &RowPlace::attempt, InAnswer::no},
    Field{"seq", &RowPlace::seq, InAnswer::no},
    Field{"flags", &RowPlace::flags, InAnswer::no},
    Field{"loss_scale", &RowPlace::loss_scale, InAnswer::no},
    Field{"print", &OwnRow::print, InAnswer::no},
};

// One row per integer, whose fingerprint it is; None: it is not known.
ColumnTable columns(const nb::list& prints) {
  std::vector<OwnRow> rows;
  for (const nb::handle print : prints) {
    OwnRow& row = rows.emplace_back();
    row.name = rows.size() % 2 == 0 ? "w\xff" : "w\\xff";  // the first is no UTF-8
    row.step = static_cast<std::int64_t>(rows.size());
    row.seq = rows.size();
    if (!print.is_none()) {
      row.print = static_cast<Fingerprint>(PyLong_AsUnsignedLongLong(print.ptr()));
    }
  }
  ColumnTable out;
  out.rows = std::ssize(rows);
  for_each_field(kOwnRow, [&]<typename Owner, typename T>(const Field<Owner, T>& field) {
    const auto get = [&](const OwnRow& row) -> const T& { return row.*field.member; };
    out.columns.push_back(field_column<T>(field.name, rows, get));
  });
  return out;
}

}  // namespace trainmon

NB_MODULE(wide_row_module, module) {
  module.def("arrays", [](const nb::list& prints) {
    return trainmon::numpy_columns(trainmon::columns(prints));
  });
  module.def("stream", [](const nb::list& prints) {
    return trainmon::arrow_stream(
        std::make_shared<trainmon::ColumnTable>(trainmon::columns(prints)));
  });
}
