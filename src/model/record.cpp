// The names of the data model's enumerations, what a batch weighs, and its gaps.
#include "trainmon/record.h"

#include <algorithm>
#include <limits>

#include "base/text.h"

namespace trainmon {

std::string shape_text(const Shape* shape) {
  return shape == nullptr ? std::string() : list_text(*shape);
}

std::string_view space_name(Space space) {
  switch (space) {
    case Space::whole:
      return "whole";
    case Space::box:
      return "box";
    case Space::flat:
      return "flat";
  }
  return "unknown";
}

std::string_view replication_name(Replication replication) {
  switch (replication) {
    case Replication::identical:
      return "identical";
    case Replication::disjoint:
      return "union";
    case Replication::partial:
      return "partial";
    case Replication::independent:
      return "independent";
  }
  return "unknown";
}

std::string_view fate_name(Fate fate) {
  switch (fate) {
    case Fate::taken:
      return "taken";
    case Fate::skipped:
      return "skipped";
    case Fate::unknown:
      return "unknown";
  }
  return "unknown";
}

std::string_view declared_type_name(DeclaredValue::Type type) {
  switch (type) {
    case DeclaredValue::Type::number:
      return "number";
    case DeclaredValue::Type::text:
      return "text";
    case DeclaredValue::Type::unknown:
      break;
  }
  return "unknown";
}

std::string_view moment_name(Moment moment) {
  switch (moment) {
    case Moment::forward_end:
      return "forward_end";
    case Moment::backward_end:
      return "backward_end";
    case Moment::before_step:
      return "before_step";
    case Moment::after_step:
      return "after_step";
    case Moment::interval:
      return "interval";
    case Moment::alert:
      return "alert";
    case Moment::stop:
      return "stop";
  }
  return "unknown";
}

std::pair<std::uint64_t, std::uint64_t> seq_range(const RecordBatch& batch) {
  std::uint64_t first = std::numeric_limits<std::uint64_t>::max();
  std::uint64_t last = 0;
  const auto widen = [&](const RowKey& key) {
    first = std::min(first, key.seq);
    last = std::max(last, key.seq);
  };
  for (const Row& row : batch.rows) widen(row.key);
  for (const Payload& payload : batch.payloads) widen(payload.key);
  return {std::min(first, last), last};
}

void add_gap(std::vector<Gap>& gaps, const Gap& gap) {
  for (Gap& known : gaps) {
    if (known.reason != gap.reason) continue;
    known.rows += gap.rows;
    known.first_seq = std::min(known.first_seq, gap.first_seq);
    known.last_seq = std::max(known.last_seq, gap.last_seq);
    return;
  }
  gaps.push_back(gap);
}

std::size_t RecordBatch::bytes() const {
  std::size_t total =
      sizeof(RecordBatch) + rows.capacity() * sizeof(Row) + checks.capacity() * sizeof(RowCheck) +
      samples.capacity() * sizeof(RowSample) + outcomes.capacity() * sizeof(Outcome) +
      scalars.capacity() * sizeof(Scalar) + payloads.capacity() * sizeof(Payload) +
      declared.capacity() * sizeof(Declared) + alerts.capacity() * sizeof(Alert) +
      gaps.capacity() * sizeof(Gap);
  for (const Scalar& scalar : scalars) total += scalar.name.capacity();
  for (const Payload& payload : payloads) total += payload.bytes.capacity();
  for (const Declared& group : declared) {
    total += group.values.capacity() * sizeof(DeclaredValue);
    for (const DeclaredValue& value : group.values) {
      total += value.name.capacity() + value.text.capacity();
    }
  }
  for (const Alert& alert : alerts) {
    total += alert.rule.capacity() + alert.message.capacity() + alert.stat.capacity();
  }
  for (const Gap& gap : gaps) total += gap.reason.capacity();
  return total;
}

}  // namespace trainmon
