// What is recorded: series, row keys, rows, outcomes, payloads, and the batch that carries them.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "trainmon/stat.h"

namespace trainmon {

using SeriesId = std::uint32_t;
// The sizes of one tensor, none for a scalar. Rows refer to one by number.
using Shape = std::vector<std::int64_t>;
using ShapeId = std::uint32_t;
inline constexpr ShapeId kUnknownShape = 0;
inline constexpr ShapeId kFullShape = 1;   // the full_shape of the row's series
inline constexpr ShapeId kFirstShape = 2;  // of those that stand in a list
// "[2,3]"; "[]" for a scalar, nothing where the shape is not known (nullptr).
std::string shape_text(const Shape* shape);

// Names of the kinds every adapter shares. A kind is text, not an enum, because optimizer state is
// recorded under the optimizer's own names (exp_avg, momentum_buffer, ...).
namespace kind {
inline constexpr std::string_view kGradUnreduced = "grad_unreduced";
inline constexpr std::string_view kGradReduced = "grad_reduced";
inline constexpr std::string_view kParamOrigin = "param_origin";
inline constexpr std::string_view kParamUpdated = "param_updated";
inline constexpr std::string_view kUpdate = "update";  // the step that a formula takes of state
inline constexpr std::string_view kActv = "actv";
inline constexpr std::string_view kActvGrad = "actv_grad";
inline constexpr std::string_view kCc = "cc";
inline constexpr std::string_view kMgDirection =
    "mg_direction";                                           // equal signs, gradient and momentum
inline constexpr std::string_view kGradMicro = "grad_micro";  // what one backward contributed
inline constexpr std::string_view kUpdateRatio = "update_ratio";  // histograms of an Adam step
inline constexpr std::string_view kStack = "stack";               // text: who called a module
inline constexpr std::string_view kAttnEntropy = "attn_entropy";
inline constexpr std::string_view kAttnMax = "attn_max";
inline constexpr std::string_view kAttnMaxLogit = "attn_max_logit";
inline constexpr std::string_view kStableRank = "stable_rank";
inline constexpr std::string_view kSpectralNorm = "spectral_norm";
inline constexpr std::string_view kRouterSimilarity = "router_similarity";
inline constexpr std::string_view kRouterEntropy = "router_entropy";
}  // namespace kind
// Every kind but those of optimizer state, in the order in which they are listed to people.
std::span<const std::string_view> fixed_kinds();

// How a local tensor sits in the full one.
//   whole  the local tensor is the full tensor
//   box    a half-open range per dimension (DTensor)
//   flat   half-open ranges of the flattened full tensor (FSDP1, ZeRO, Megatron)
enum class Space : std::uint8_t { whole, box, flat };
std::string_view space_name(Space space);

struct Range {
  std::int64_t begin = 0;
  std::int64_t end = 0;
  bool operator==(const Range&) const = default;
};

// How the same series on different ranks relate.
//   identical    every rank holds the same values: a reader takes one
//   disjoint     parts of one whole ("union" in docs and files): a reader merges them
//   partial      summands of one value (unreduced gradients): never merged
//   independent  unrelated values: never merged
enum class Replication : std::uint8_t { identical, disjoint, partial, independent };
std::string_view replication_name(Replication replication);  // "identical", "union", ...

// What one row is a row of. Registered once per rank, referred to by SeriesId afterwards.
struct Series {
  std::string kind;
  std::int32_t chunk = 0;      // model chunk (virtual pipeline stage), 0 for a single model
  std::string name;            // parameter or module as the user wrote it; "" is the root module
  std::string element;         // "" for parameters; "input.0", "output", "output.logits", ...
  std::int32_t optimizer = 0;  // whose windows the rows follow (the clock for activations)
  DType dtype = DType::float32;
  Space space = Space::whole;
  std::vector<Range> ranges;  // box: one per dimension; flat: pieces in order
  Shape full_shape;           // of the full tensor; empty when it varies (activations)
  Replication replication = Replication::independent;
  bool operator==(const Series&) const = default;
};

// Row flags (bits). Clipping unknown is neither of the two clip bits.
namespace flag {
inline constexpr std::uint32_t kStillScaled = 1u << 0;  // loss scale not yet divided out
inline constexpr std::uint32_t kClipBefore = 1u << 1;   // seen before gradient clipping
inline constexpr std::uint32_t kClipAfter = 1u << 2;    // seen after gradient clipping
inline constexpr std::uint32_t kPartial = 1u << 3;      // not all of the tensor was seen
inline constexpr std::uint32_t kNonFinite = 1u << 4;    // a NaN or an infinity among the elements
inline constexpr std::uint32_t kNotReady = 1u
                                           << 5;  // the device gave no value in time; state empty
inline constexpr std::uint32_t kOverLimit = 1u
                                            << 6;   // its size or norm is beyond the alerts' limit
inline constexpr std::uint32_t kSampled = 1u << 7;  // an estimate from some blocks (RowSample)
// Of an activation, an input or a weight: infinities, and no NaN. A mask of attention looks so. Of
// what the model or a module is given, and of a buffer, a NaN, too, which may stand for what is
// missing. Of weights and buffers from their first row on.
inline constexpr std::uint32_t kMasked = 1u << 8;
// Of a weight before the step: the forward may have changed it, as nn.Embedding(max_norm=...) does,
// or another optimizer, which is not watched.
inline constexpr std::uint32_t kForwardChanges = 1u << 9;
// Of optimizer state: as it was before the step (moments_at).
inline constexpr std::uint32_t kBeforeStep = 1u << 10;
// Measured by operations of the framework, whose sums have other low bits.
inline constexpr std::uint32_t kByOperations = 1u << 11;
// Beside kMasked: what else is not finite later in that step began here. Of an activation in the
// first window of them after rows without. Of an input, masked then, in that of a NaN or +Inf, and
// of a module's in that of a NaN.
inline constexpr std::uint32_t kFirstMasked = 1u << 12;
// What a full queue keeps: an alert may be in it.
inline constexpr std::uint32_t kUrgent = kNonFinite | kOverLimit;
}  // namespace flag

// Where in the run a row belongs.
//   window  counts, per optimizer, from one step to the next attempt at one
//   accum   ordinal of the backward in the window; for an activation, of the one after its forward
//   call    counts calls of one module within (window, accum)
//   seq     order of execution on this rank, unique per row
struct RowKey {
  SeriesId series = 0;
  std::uint32_t flags = 0;
  std::int64_t window = 0;
  std::int32_t accum = 0;
  std::int32_t call = 0;
  std::uint64_t seq = 0;
};

struct Row {
  RowKey key;
  RowState state;
  ShapeId shape = kUnknownShape;  // of the tensor measured; from kFirstShape on of SeriesTable or,
                                  // where a log was read, of RecordBatch::shapes
};

// What the step checks took of the tensor of a row, in the same reading (docs/formats.md defines
// both). Not of every row: of those kinds that obey equations, where `checks` is set.
struct RowCheck {
  std::uint64_t seq = 0;          // of the row
  std::uint64_t fingerprint = 0;  // of the bits of the elements, as they are in memory
  bool has_sketch = false;
  std::array<float, 8> sketch = {};  // of the elements, divided by what the row's state is
};

// What a row with flag::kSampled has beside its state, which is an estimate (docs/formats.md). The
// errors are one standard error. They say nothing of elements that are not finite.
struct RowSample {
  std::uint64_t seq = 0;      // of the row
  std::int64_t elements = 0;  // that were read
  double sum_error = 0.0;     // of the state's sum
  double sum_sq_error = 0.0;  // of its sum_sq, and divided by the same 4^exponent
  // Of the finite elements that were read; +inf and -inf where there is none.
  double min = std::numeric_limits<double>::infinity();
  double max = -std::numeric_limits<double>::infinity();
};
// The standard errors of what derive() gives as mean and norm; NaN where it gives no finite number.
double mean_error(const RowState& state, const RowSample& sample);
double norm_error(const RowState& state, const RowSample& sample);

// What became of a window; written when it is known, which may be long after the window's rows.
enum class Fate : std::uint8_t { taken, skipped, unknown };
std::string_view fate_name(Fate fate);

struct Outcome {
  std::int32_t optimizer = 0;
  std::int64_t window = 0;
  std::int64_t step = 0;     // the step this window took or tried to take
  std::int32_t attempt = 0;  // 0 for the first try at that step
  Fate fate = Fate::unknown;
  double loss_scale = 1.0;  // NaN when a scaler was there but its scale is unknown
  // How many backwards the window had; -1 where a log was read, which does not keep it. A window
  // that was abandoned when the next backward began holds the forward of that one, too. Its rows
  // have this number as their accum and belong to the next window.
  std::int32_t backwards = -1;
};

// A scalar of the run (`mon.log(loss=...)`), on the clock's window.
struct Scalar {
  std::string name;
  std::int64_t window = 0;
  std::uint64_t seq = 0;
  double value = 0.0;
};

// Typed bytes beside rows, counted as a row wherever rows are counted; the layout of each type is
// in docs/formats.md.
enum class PayloadType : std::uint8_t {
  histogram = 1,
  sign_bits = 2,
  digest = 3,
  text = 4,
  probe = 5,  // what a gradient probe took of a tensor; the window of its key is its step
};
struct Payload {
  PayloadType type = PayloadType::text;
  RowKey key;
  std::vector<std::byte> bytes;
};

// What a parameter group of an optimizer says in a step: lr, weight_decay, betas.0, ... The first
// record of a start is complete, later ones hold what is not as before.
struct DeclaredValue {
  enum class Type : std::uint8_t { number, text, unknown };  // unknown: on a device, not waited for
  std::string name;
  Type type = Type::number;
  double number = 0.0;  // exactly as the optimizer computes with it
  std::string text;
};
std::string_view declared_type_name(DeclaredValue::Type type);  // "number", "text", "unknown"
struct Declared {
  std::int32_t optimizer = 0;
  std::int32_t group = 0;
  std::int64_t window = 0;
  std::uint64_t seq = 0;  // of the row that comes next
  std::vector<DeclaredValue> values;
};

// What a rule found. Repeats for one (series, rule, stat) coalesce: they come as further records
// with the same key and a larger count. Alerts that differ in key are different findings.
struct Alert {
  std::string rule;
  RowKey key;              // of the first occurrence
  std::int64_t step = -1;  // of the first occurrence, as far as known when it was seen
  std::string message;
  std::int64_t count = 1;
  std::string stat;  // name of the statistic; "" when it is about the elements (non_finite)
  double value = std::numeric_limits<double>::quiet_NaN();     // what was seen
  double expected = std::numeric_limits<double>::quiet_NaN();  // mean of the history; NaN: none
};

// Rows lost before this batch, so that a loss is visible in the data and not only in health.json.
// The sequence numbers bound where they were.
struct Gap {
  std::string reason;
  std::int64_t rows = 0;
  std::uint64_t first_seq = 0;
  std::uint64_t last_seq = 0;
};

// The moment that closed a batch.
enum class Moment : std::uint8_t {
  forward_end,
  backward_end,
  before_step,
  after_step,
  interval,
  alert,
  stop,
};
std::string_view moment_name(Moment moment);

struct RecordBatch;

// Where the values of a batch will be, when a device still computes them. `ready` and `fill` are
// called from the writer thread only and neither blocks nor throws.
class LateValues {
 public:
  virtual ~LateValues() = default;
  virtual bool ready() const noexcept = 0;
  // Whether they will never be ready, for the device is lost.
  virtual bool lost() const noexcept { return false; }
  // Writes the state of every row of the batch and the bytes of every payload.
  virtual void fill(RecordBatch& batch) noexcept = 0;
};

// Rows sealed together. A sealed row never changes its address. On the way to the sinks late values
// are filled in and rules append what they found. A full queue may drop rows, which leaves a gap.
struct RecordBatch {
  std::uint64_t number = 0;  // order of sealing on this rank
  Moment moment = Moment::interval;
  std::int64_t time_ns = 0;  // wall clock at sealing, ns since 1970
  double eps = kDefaultEps;
  std::vector<Row> rows;           // ordered by seq
  std::vector<RowCheck> checks;    // of some of the rows, ordered by seq
  std::vector<RowSample> samples;  // of the sampled rows, ordered by seq
  std::vector<Outcome> outcomes;
  std::vector<Scalar> scalars;
  std::vector<Payload> payloads;
  std::vector<Declared> declared;
  std::vector<Alert> alerts;
  std::vector<Gap> gaps;
  std::vector<Shape> shapes;         // of rows, where a log was read
  std::shared_ptr<LateValues> late;  // null: every row has its values

  bool empty() const {
    return rows.empty() && outcomes.empty() && scalars.empty() && payloads.empty() &&
           declared.empty() && alerts.empty() && gaps.empty();
  }
  // Rows and payloads: what rows_produced, rows_written and rows_dropped count.
  std::int64_t row_count() const {
    return static_cast<std::int64_t>(rows.size() + payloads.size());
  }
  // What the batch occupies, for the queue's limit.
  std::size_t bytes() const;
};

// The first and last sequence number among rows and payloads; {0, 0} without any.
std::pair<std::uint64_t, std::uint64_t> seq_range(const RecordBatch& batch);

// Appends a gap, or widens the one with the same reason.
void add_gap(std::vector<Gap>& gaps, const Gap& gap);

// All series of this rank. Readable from any thread while others are added; references stay valid.
class SeriesTable {
 public:
  virtual ~SeriesTable() = default;
  virtual const Series& at(SeriesId id) const = 0;
  virtual std::size_t size() const = 0;
  // What a number from kFirstShape on stands for; nullptr for others. References stay valid.
  virtual const Shape* shape(ShapeId) const { return nullptr; }
  // Of the tensor that the row measured; nullptr: not known.
  const Shape* shape_of(const Row& row) const {
    return row.shape == kFullShape ? &at(row.key.series).full_shape : shape(row.shape);
  }
};

}  // namespace trainmon
