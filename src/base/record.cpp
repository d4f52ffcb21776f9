// The names of the data model's enumerations, and what a batch weighs.
#include "trainmon/record.h"

namespace trainmon {

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

std::size_t RecordBatch::bytes() const {
  std::size_t total = sizeof(RecordBatch) + rows.capacity() * sizeof(Row) +
                      outcomes.capacity() * sizeof(Outcome) + scalars.capacity() * sizeof(Scalar) +
                      payloads.capacity() * sizeof(Payload) + alerts.capacity() * sizeof(Alert) +
                      gaps.capacity() * sizeof(Gap);
  for (const Scalar& scalar : scalars) total += scalar.name.capacity();
  for (const Payload& payload : payloads) total += payload.bytes.capacity();
  for (const Alert& alert : alerts) total += alert.rule.capacity() + alert.message.capacity();
  for (const Gap& gap : gaps) total += gap.reason.capacity();
  return total;
}

}  // namespace trainmon
