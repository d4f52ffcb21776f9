// The target tensorboard: event files, one per part. Of msprobe's files rank{r}/{type}/ with tags
// vp{stage}:{name}[:micro{m}]/{statistic}; of runs rank_{r}/ with {statistic}/{kind}/{name}.
#include <chrono>
#include <cmath>
#include <map>
#include <mutex>
#include <tuple>

#include "convert/target.h"
#include "model/histogram.h"
#include "sinks/event_file.h"

namespace trainmon {
namespace {

constexpr std::size_t kManyTags = 2000;  // beyond it TensorBoard is no pleasure

double now() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

// Events of one file in ascending order of arrival.
class Events {
 public:
  Events(const std::filesystem::path& directory, int restart, int number) : time_(now()) {
    make_directories(directory);
    file_.create(directory / event_file_name(static_cast<std::int64_t>(time_), restart, number),
                 time_);
  }
  EventRecords& at(std::int64_t step) {
    if (step != step_ || !is_open_) {
      if (is_open_) records_.end();
      if (records_.bytes().size() > kTargetBuffer) drain();
      records_.begin(time_, step);
      is_open_ = true;
      step_ = step;
    }
    return records_;
  }
  void end() {
    if (is_open_) records_.end();
    is_open_ = false;
    drain();
  }

 private:
  void drain() {
    file_.append(records_.bytes());
    records_.clear();
  }
  const double time_;
  EventFile file_;
  EventRecords records_;
  std::int64_t step_ = 0;
  bool is_open_ = false;
};

class TensorboardTarget final : public Target {
 public:
  explicit TensorboardTarget(const TargetPlace& place)
      : directory_(place.path), source_(place.source), stats_(place.stats) {
    make_directories(directory_);
  }

  bool is_part_by_part() const override { return true; }
  std::unique_ptr<RowWriter> writer(std::size_t part) override {
    return std::make_unique<Part>(*this, part);
  }

  void finish(RowAccount& account) override {
    const RunRows* facts = source_.facts();
    if (facts != nullptr) write_scalars(*facts);
    write_histograms(account);
    if (!source_.is_msprobe() && tags_ > kManyTags) {
      account.remark(std::to_string(tags_) + " curves: TensorBoard gets slow beyond " +
                     std::to_string(kManyTags) + "; --kind, --name and --stat choose fewer");
    }
  }

 private:
  class Part final : public RowWriter {
   public:
    Part(TensorboardTarget& target, std::size_t part)
        : target_(target), part_(target.source_.parts()[part]), number_(static_cast<int>(part)) {}

    void take(const TableRow& row) override {
      std::unique_ptr<Events>& events = events_[row.rank];
      if (!events) {
        const auto directory =
            part_.kind.empty()
                ? target_.rank_directory(row.rank)
                : target_.directory_ / ("rank" + std::to_string(row.rank)) / part_.kind;
        events = std::make_unique<Events>(directory, row.restart, number_);
      }
      EventRecords& records = events->at(row.step);
      const std::vector<std::string>& tags = tags_of(row);
      for (std::size_t i = 0; i < tags.size(); ++i) {
        if ((row.absent >> i & 1) == 0) records.scalar(tags[i], row.values[i]);
      }
    }
    void end() override {
      for (auto& [rank, events] : events_) events->end();
      const std::lock_guard lock(target_.mutex_);
      std::size_t tags = 0;
      for (const auto& [place, names] : tags_) tags += names.size();
      target_.tags_ = std::max(target_.tags_, tags);
    }

   private:
    const std::vector<std::string>& tags_of(const TableRow& row) {
      const std::tuple place(row.series, row.micro_step, row.call);
      const auto [known, is_new] = tags_.try_emplace(place);
      if (is_new) {
        for (const std::string& stat : target_.stats_) known->second.push_back(tag(row, stat));
      }
      return known->second;
    }
    std::string tag(const TableRow& row, const std::string& stat) const {
      const Series& series = *row.series;
      if (target_.source_.is_msprobe()) {
        std::string text = "vp" + std::to_string(series.chunk) + ":" + series.name;
        if (part_.has_micro_steps) text += ":micro" + std::to_string(row.micro_step);
        return text + "/" + stat;
      }
      std::string text = stat + "/" + series.kind + "/";
      if (series.chunk != 0) text += std::to_string(series.chunk) + ":";
      text += series.name;
      if (!series.element.empty()) text += "." + series.element;
      if (row.micro_step > 0) text += ":micro" + std::to_string(row.micro_step);
      if (row.call > 0) text += ":call" + std::to_string(row.call);
      return text;
    }

    TensorboardTarget& target_;
    const Source::Part& part_;
    const int number_;
    std::map<int, std::unique_ptr<Events>> events_;  // by rank
    std::map<std::tuple<const Series*, std::int32_t, std::int32_t>, std::vector<std::string>> tags_;
  };

  std::filesystem::path rank_directory(int rank) const {
    return directory_ / (rank < 0 ? std::string("merged") : "rank_" + std::to_string(rank));
  }

  void write_scalars(const RunRows& facts) {
    std::map<int, std::unique_ptr<Events>> ranks;
    for (const ReadScalar& scalar : facts.scalars) {
      std::unique_ptr<Events>& events = ranks[scalar.rank];
      if (!events) {
        events = std::make_unique<Events>(rank_directory(scalar.rank), scalar.restart, kScalars);
      }
      events->at(scalar.step).scalar("run/" + scalar.name, scalar.value);
    }
    for (auto& [rank, events] : ranks) events->end();
    ranks.clear();
    for (const ReadDeclared& one : facts.declared) {
      if (one.value.type != DeclaredValue::Type::number) continue;
      std::unique_ptr<Events>& events = ranks[one.rank];
      if (!events) {
        events = std::make_unique<Events>(rank_directory(one.rank), one.restart, kDeclared);
      }
      events->at(one.step).scalar(declared_tag(one.optimizer, one.group, one.value.name),
                                  one.value.number);
    }
    for (auto& [rank, events] : ranks) events->end();
  }

  void write_histograms(RowAccount& account) {
    std::map<int, std::unique_ptr<Events>> ranks;
    std::int64_t others = 0;
    source_.read_payloads(
        [&](const Series& series, const ReadPayload& p) {
          const std::optional<Histogram> histogram = p.payload.type == PayloadType::histogram
                                                         ? read_histogram(p.payload.bytes)
                                                         : std::nullopt;
          if (!histogram) {
            ++others;
            return;
          }
          std::unique_ptr<Events>& events = ranks[p.rank];
          if (!events) {
            events = std::make_unique<Events>(rank_directory(p.rank), p.restart, kHistograms);
          }
          std::string tag = series.kind + "/" + series.name;
          if (!series.element.empty()) tag += "." + series.element;
          events->at(p.step).histogram(tag, *histogram);
        },
        account);
    for (auto& [rank, events] : ranks) events->end();
    if (others > 0) account.remark(std::to_string(others) + " texts have no place in event files");
  }

  // Numbers of files beside those of parts.
  static constexpr int kScalars = 900000;
  static constexpr int kDeclared = 900002;
  static constexpr int kHistograms = 900001;

  const std::filesystem::path directory_;
  Source& source_;
  const std::vector<std::string>& stats_;
  std::mutex mutex_;
  std::size_t tags_ = 0;  // the most of one rank
};

}  // namespace

std::unique_ptr<Target> make_tensorboard_target(const TargetPlace& place) {
  return std::make_unique<TensorboardTarget>(place);
}

}  // namespace trainmon
