// The targets csv and jsonl: a directory with rows.csv or rows.jsonl, and one file beside it for
// each sort of record that is no row.
#include <memory>
#include <string>

#include "base/file.h"
#include "base/text.h"
#include "convert/json_line.h"
#include "convert/target.h"
#include "sinks/csv_text.h"

namespace trainmon {
namespace {

// A file that is written from front to back.
class Output {
 public:
  explicit Output(std::filesystem::path path) : path_(std::move(path)), file_(create_file(path_)) {}
  std::string& text() { return text_; }
  void drain(std::size_t beyond) {
    if (text_.size() <= beyond) return;
    write_at(file_, size_, text_, path_);
    size_ += static_cast<std::int64_t>(text_.size());
    text_.clear();
  }

 private:
  std::filesystem::path path_;
  File file_;
  std::int64_t size_ = 0;
  std::string text_;
};

// How records of every sort are put into text.
class TextForm {
 public:
  virtual ~TextForm() = default;
  virtual std::string_view extension() const = 0;
  virtual void begin_rows(std::string& text) = 0;
  virtual void row(std::string& text, const TableRow& row) = 0;
  virtual void record(std::string& text, const std::vector<Cell>& cells, bool is_first) = 0;
};

class CsvForm final : public TextForm {
 public:
  CsvForm(const std::vector<std::string>& stats, csv_text::Cells cells)
      : cells_(cells), table_(stats, cells) {}
  std::string_view extension() const override { return ".csv"; }
  void begin_rows(std::string& text) override { text += table_.header(); }
  void row(std::string& text, const TableRow& row) override { table_.append(text, row); }
  void record(std::string& text, const std::vector<Cell>& cells, bool is_first) override {
    if (is_first) csv_text::append_names(text, cells);
    csv_text::append_record(text, cells, cells_);
  }

 private:
  const csv_text::Cells cells_;
  const csv_text::WideTable table_;
};

class JsonForm final : public TextForm {
 public:
  explicit JsonForm(const std::vector<std::string>& stats) : stats_(stats) {
    for (const std::string& name : stats) is_count_.push_back(is_count(name));
  }
  std::string_view extension() const override { return ".jsonl"; }
  void begin_rows(std::string&) override {}

  void row(std::string& text, const TableRow& row) override {
    JsonLine line(text);
    for_each_field(kWideRow, [&]<typename Owner, typename T>(const Field<Owner, T>& field) {
      put_cell(field.of(row, *row.series), [&](auto cell) {
        if constexpr (cell_type<T>() == CellType::text && std::is_same_v<decltype(cell), Unknown>) {
          line.cell(field.name, std::string_view());
        } else {
          line.cell(field.name, cell);
        }
      });
    });
    for (std::size_t i = 0; i < stats_.size(); ++i) {
      row.put_value(i, is_count_[i], [&](auto cell) { line.cell(stats_[i], cell); });
    }
    line.end();
  }

  void record(std::string& text, const std::vector<Cell>& cells, bool) override {
    JsonLine line(text);
    for (const Cell& cell : cells) {
      const bool is_plain = cell.is_number && cell.text.find_first_of("nN") == std::string::npos;
      line.json(cell.name, is_plain ? cell.text : json_string(cell.text));
    }
    line.end();
  }

 private:
  const std::vector<std::string>& stats_;
  std::vector<bool> is_count_;
};

class TextTarget final : public Target {
 public:
  TextTarget(const TargetPlace& place, std::unique_ptr<TextForm> form)
      : directory_(place.path), source_(place.source), form_(std::move(form)) {
    make_directories(directory_);
  }

  std::unique_ptr<RowWriter> writer(std::size_t) override {
    return std::make_unique<Rows>(path("rows"), *form_);
  }

  void finish(RowAccount& account) override {
    write_payloads(account);
    const RunRows* facts = source_.facts();
    if (facts == nullptr) return;
    write_scalars(*facts);
    write_declared(*facts);
    write_alerts(*facts);
    write_gaps(*facts);
  }

 private:
  class Rows final : public RowWriter {
   public:
    Rows(const std::filesystem::path& path, TextForm& form) : output_(path), form_(form) {
      form_.begin_rows(output_.text());
    }
    void take(const TableRow& row) override {
      form_.row(output_.text(), row);
      output_.drain(kTargetBuffer);
    }
    void end() override { output_.drain(0); }

   private:
    Output output_;
    TextForm& form_;
  };

  std::filesystem::path path(const std::string& name) const {
    return directory_ / (name + std::string(form_->extension()));
  }

  template <typename Records, typename Cells>
  void write(const std::string& name, const Records& records, const Cells& cells) {
    if (records.empty()) return;
    Output output(path(name));
    bool is_first = true;
    for (const auto& record : records) {
      form_->record(output.text(), cells(record), is_first);
      is_first = false;
      output.drain(kTargetBuffer);
    }
    output.drain(0);
  }

  static Cell integer(std::string_view name, std::int64_t value) {
    return {name, std::to_string(value), true};
  }
  static Cell number(std::string_view name, double value) {
    return {name, number_text(value), true};
  }
  static void add_series(std::vector<Cell>& cells, const Series& series) {
    cells.push_back({"kind", series.kind});
    cells.push_back(integer("chunk", series.chunk));
    cells.push_back({"name", series.name});
    cells.push_back({"element", series.element});
  }

  static void add_place(std::vector<Cell>& cells, const RowKey& key) {
    cells.push_back(integer("window", key.window));
    cells.push_back(integer("accum", key.accum));
    cells.push_back(integer("call", key.call));
    cells.push_back(integer("seq", static_cast<std::int64_t>(key.seq)));
    cells.push_back(integer("flags", key.flags));
  }

  void write_scalars(const RunRows& facts) {
    write("scalars", facts.scalars, [](const ReadScalar& s) {
      return std::vector<Cell>{integer("restart", s.restart),
                               integer("rank", s.rank),
                               integer("step", s.step),
                               {"name", s.name},
                               number("value", s.value)};
    });
  }

  void write_declared(const RunRows& facts) { write("declared", facts.declared, declared_cells); }

  void write_alerts(const RunRows& facts) {
    write("alerts", facts.alerts, [&](const ReadAlert& a) {
      std::vector<Cell> cells = {integer("restart", a.restart), integer("rank", a.rank)};
      const RowKey& key = a.alert.key;
      const Series& series = facts.series[key.series];
      add_series(cells, series);
      cells.push_back(integer("optimizer", series.optimizer));
      cells.push_back(integer("step", a.alert.step));
      add_place(cells, key);
      cells.push_back({"rule", a.alert.rule});
      cells.push_back({"stat", a.alert.stat});
      cells.push_back(number("value", a.alert.value));
      cells.push_back(number("expected", a.alert.expected));
      cells.push_back(integer("count", a.alert.count));
      cells.push_back({"message", a.alert.message});
      return cells;
    });
  }

  void write_gaps(const RunRows& facts) {
    write("gaps", facts.gaps, [](const ReadGap& g) {
      return std::vector<Cell>{integer("restart", g.restart),
                               integer("rank", g.rank),
                               {"reason", g.gap.reason},
                               integer("rows", g.gap.rows),
                               integer("first_seq", static_cast<std::int64_t>(g.gap.first_seq)),
                               integer("last_seq", static_cast<std::int64_t>(g.gap.last_seq))};
    });
  }

  void write_payloads(RowAccount& account) {
    std::unique_ptr<Output> output;
    source_.read_payloads(
        [&](const Series& series, const ReadPayload& p) {
          std::vector<Cell> cells = {integer("restart", p.restart), integer("rank", p.rank)};
          add_series(cells, series);
          cells.push_back(integer("optimizer", series.optimizer));
          cells.push_back(integer("step", p.step));
          cells.push_back(integer("attempt", p.attempt));
          add_place(cells, p.payload.key);
          cells.push_back({"type", std::string(payload_type_name(p.payload.type))});
          cells.push_back({"value", payload_cell(p.payload)});
          const bool is_first = output == nullptr;
          if (is_first) output = std::make_unique<Output>(path("payloads"));
          form_->record(output->text(), cells, is_first);
          output->drain(kTargetBuffer);
        },
        account);
    if (output) output->drain(0);
  }

  const std::filesystem::path directory_;
  Source& source_;
  const std::unique_ptr<TextForm> form_;
};

}  // namespace

std::unique_ptr<Target> make_csv_target(const TargetPlace& place) {
  const auto cells = place.options.safe_cells ? csv_text::Cells::safe : csv_text::Cells::exact;
  return std::make_unique<TextTarget>(place, std::make_unique<CsvForm>(place.stats, cells));
}

std::unique_ptr<Target> make_jsonl_target(const TargetPlace& place) {
  return std::make_unique<TextTarget>(place, std::make_unique<JsonForm>(place.stats));
}

}  // namespace trainmon
