// Records with random content, and what it means for two of them to be the same.
#pragma once

#include <array>
#include <bit>
#include <cstdint>
#include <deque>
#include <limits>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "read/log.h"
#include "trainmon/read.h"
#include "trainmon/sink.h"

namespace trainmon {

class ListedSeries : public SeriesTable {
 public:
  SeriesId add(Series series) {
    list_.push_back(std::move(series));
    return static_cast<SeriesId>(list_.size() - 1);
  }
  // As a monitor numbers them: never that of the series.
  ShapeId add(const Shape& shape) {
    shapes_.push_back(shape);
    return static_cast<ShapeId>(kFirstShape + shapes_.size() - 1);
  }
  const Series& at(SeriesId id) const override { return list_[id]; }
  const Shape* shape(ShapeId id) const override {
    const std::size_t place = id - kFirstShape;
    return id < kFirstShape || place >= shapes_.size() ? nullptr : &shapes_[place];
  }
  std::size_t size() const override { return list_.size(); }

 private:
  std::deque<Series> list_;
  std::deque<Shape> shapes_;
};

class RandomRecords {
 public:
  explicit RandomRecords(std::uint64_t seed) : random_(seed) {}

  std::uint64_t below(std::uint64_t limit) { return random_() % limit; }

  std::string bytes(std::size_t most) {
    std::string text(below(most + 1), '\0');
    for (char& c : text) c = static_cast<char>(random_());
    return text;
  }

  std::int64_t integer() {
    // Every magnitude equally often, both signs, the extremes included.
    const auto value = static_cast<std::int64_t>(random_() >> below(64));
    return below(2) == 0 ? value : -value - 1;
  }

  double real() {
    switch (below(6)) {
      case 0:
        return std::bit_cast<double>(random_());  // any bits, NaN payloads too
      case 1:
        return static_cast<double>(
            std::bit_cast<float>(static_cast<std::uint32_t>(random_()) & 0xBFFFFFFFu));
      case 2:
        return below(2) == 0 ? 0.0 : -0.0;
      case 3:
        return std::numeric_limits<double>::infinity();
      default:
        return std::normal_distribution<double>()(random_);
    }
  }

  Series series() {
    Series s;
    s.kind = below(4) == 0 ? bytes(12) : "grad_reduced";
    s.chunk = static_cast<std::int32_t>(integer());
    s.name = below(4) == 0 ? bytes(60) : "layers." + std::to_string(below(90)) + ".weight";
    s.element = below(3) == 0 ? "output." + bytes(4) : "";
    s.optimizer = static_cast<std::int32_t>(below(3));
    s.dtype = static_cast<DType>(below(15));
    s.space = static_cast<Space>(below(3));
    for (std::uint64_t n = below(4); n > 0; --n) s.ranges.push_back({integer(), integer()});
    for (std::uint64_t n = below(4); n > 0; --n) s.full_shape.push_back(integer());
    s.replication = static_cast<Replication>(below(4));
    return s;
  }

  RowKey key(std::size_t series_count) {
    RowKey k;
    k.series = static_cast<SeriesId>(below(series_count));
    k.flags = static_cast<std::uint32_t>(below(64));
    k.window = below(8) == 0 ? integer() : static_cast<std::int64_t>(below(100));
    k.accum = static_cast<std::int32_t>(below(8) == 0 ? integer() : 0);
    k.call = static_cast<std::int32_t>(below(8) == 0 ? integer() : 0);
    k.seq = next_seq_++;
    return k;
  }

  RowState state() {
    RowState s;
    s.count = below(3) == 0 ? integer() : static_cast<std::int64_t>(below(100000));
    s.nans = below(8) == 0 ? integer() : 0;
    s.pos_infs = below(8) == 0 ? integer() : 0;
    s.neg_infs = below(8) == 0 ? integer() : 0;
    s.zeros = static_cast<std::int64_t>(below(100));
    s.subnormals = below(8) == 0 ? integer() : 0;
    s.sum = real();
    s.mean = below(2) == 0 ? real() : s.sum / static_cast<double>(s.count);
    s.m2 = real();
    s.sum_sq = real();
    s.min = real();
    s.max = real();
    s.absmax = real();
    s.exponent = below(8) == 0 ? static_cast<std::int32_t>(integer()) : 0;
    return s;
  }

  RowCheck check(std::uint64_t seq) {
    RowCheck c;
    c.seq = seq;
    c.fingerprint = random_();
    c.has_sketch = below(3) != 0;
    for (float& sum : c.sketch) {  // any bits, those of NaN too
      sum = c.has_sketch ? std::bit_cast<float>(static_cast<std::uint32_t>(random_())) : 0.0f;
    }
    return c;
  }

  // Of a group; the names are of this value alone.
  Declared declared() {
    Declared d;
    d.optimizer = static_cast<std::int32_t>(below(3));
    d.group = static_cast<std::int32_t>(below(4));
    d.window = static_cast<std::int64_t>(below(100));
    d.seq = next_seq_++;
    for (std::uint64_t n = below(3) + 1; n > 0; --n) {
      DeclaredValue& value = d.values.emplace_back();
      value.name = std::to_string(d.seq) + "." + std::to_string(n) + bytes(8);
      value.type = static_cast<DeclaredValue::Type>(below(3));
      if (value.type == DeclaredValue::Type::number) value.number = real();
      if (value.type == DeclaredValue::Type::text) value.text = bytes(20);
    }
    return d;
  }

  RecordBatch batch(std::uint64_t number, std::size_t series_count, std::size_t most_rows = 40) {
    RecordBatch b;
    b.number = number;
    b.moment = static_cast<Moment>(below(7));
    b.time_ns = integer();
    b.eps = 1e-8;
    if (below(8) != 0) {
      for (std::uint64_t n = below(most_rows) + 1; n > 0; --n) {
        b.rows.push_back({key(series_count), state()});
      }
    }
    for (const Row& row : b.rows) {
      if (below(3) == 0) b.checks.push_back(check(row.key.seq));
    }
    for (Row& row : b.rows) {
      if (row.key.seq % 5 != 0) continue;
      row.key.flags |= flag::kSampled;
      row.state.mark_estimate();
      b.samples.push_back({row.key.seq, row.state.count, row.state.sum, row.state.m2, -1.5, 2.5});
    }
    for (std::uint64_t n = below(3); n > 0; --n) {
      b.outcomes.push_back({static_cast<std::int32_t>(below(3)), integer(), integer(),
                            static_cast<std::int32_t>(integer()), static_cast<Fate>(below(3)),
                            real()});
    }
    for (std::uint64_t n = below(3); n > 0; --n) {
      b.scalars.push_back({bytes(20), integer(), next_seq_++, real()});
    }
    for (std::uint64_t n = below(2); n > 0; --n) {
      const std::string raw = bytes(300);
      Payload p{PayloadType::digest, key(series_count), {}};
      for (const char c : raw) p.bytes.push_back(static_cast<std::byte>(c));
      b.payloads.push_back(std::move(p));
    }
    for (std::uint64_t n = below(2); n > 0; --n) {
      b.alerts.push_back({bytes(10), key(series_count), integer(), bytes(50), integer(), bytes(8),
                          real(), real()});
    }
    for (std::uint64_t n = below(2); n > 0; --n) {
      b.gaps.push_back({bytes(10), integer(), random_(), random_()});
    }
    for (std::uint64_t n = below(2); n > 0; --n) b.declared.push_back(declared());
    return b;
  }

 private:
  std::mt19937_64 random_;
  std::uint64_t next_seq_ = 0;
};

// Equal to the last bit (NaN equals the same NaN), late values aside.
inline bool same(double a, double b) {
  return std::bit_cast<std::uint64_t>(a) == std::bit_cast<std::uint64_t>(b);
}
inline bool same(const RowKey& a, const RowKey& b) {
  return a.series == b.series && a.flags == b.flags && a.window == b.window && a.accum == b.accum &&
         a.call == b.call && a.seq == b.seq;
}
inline bool same(const RowState& a, const RowState& b) {
  return a.count == b.count && a.nans == b.nans && a.pos_infs == b.pos_infs &&
         a.neg_infs == b.neg_infs && a.zeros == b.zeros && a.subnormals == b.subnormals &&
         same(a.sum, b.sum) && same(a.mean, b.mean) && same(a.m2, b.m2) &&
         same(a.sum_sq, b.sum_sq) && same(a.min, b.min) && same(a.max, b.max) &&
         same(a.absmax, b.absmax) && a.exponent == b.exponent;
}
inline bool same(const Row& a, const Row& b) {
  return same(a.key, b.key) && same(a.state, b.state);
}
inline bool same(const RowCheck& a, const RowCheck& b) {
  using Bits = std::array<std::uint32_t, 8>;
  return a.seq == b.seq && a.fingerprint == b.fingerprint && a.has_sketch == b.has_sketch &&
         std::bit_cast<Bits>(a.sketch) == std::bit_cast<Bits>(b.sketch);
}
inline bool same(const RowSample& a, const RowSample& b) {
  return a.seq == b.seq && a.elements == b.elements && same(a.sum_error, b.sum_error) &&
         same(a.sum_sq_error, b.sum_sq_error) && same(a.min, b.min) && same(a.max, b.max);
}
inline bool same(const Outcome& a, const Outcome& b) {
  return a.optimizer == b.optimizer && a.window == b.window && a.step == b.step &&
         a.attempt == b.attempt && a.fate == b.fate && same(a.loss_scale, b.loss_scale);
}
inline bool same(const Scalar& a, const Scalar& b) {
  return a.name == b.name && a.window == b.window && a.seq == b.seq && same(a.value, b.value);
}
inline bool same(const Payload& a, const Payload& b) {
  return a.type == b.type && same(a.key, b.key) && a.bytes == b.bytes;
}
inline bool same(const DeclaredValue& a, const DeclaredValue& b) {
  return a.name == b.name && a.type == b.type && same(a.number, b.number) && a.text == b.text;
}
inline bool same(const Alert& a, const Alert& b) {
  return a.rule == b.rule && same(a.key, b.key) && a.step == b.step && a.message == b.message &&
         a.count == b.count && a.stat == b.stat && same(a.value, b.value) &&
         same(a.expected, b.expected);
}
inline bool same(const Gap& a, const Gap& b) {
  return a.reason == b.reason && a.rows == b.rows && a.first_seq == b.first_seq &&
         a.last_seq == b.last_seq;
}
template <typename T>
bool same(const std::vector<T>& a, const std::vector<T>& b) {
  if (a.size() != b.size()) return false;
  for (std::size_t i = 0; i < a.size(); ++i) {
    if (!same(a[i], b[i])) return false;
  }
  return true;
}
inline bool same(const Declared& a, const Declared& b) {
  return a.optimizer == b.optimizer && a.group == b.group && a.window == b.window &&
         a.seq == b.seq && same(a.values, b.values);
}
inline bool same(const RecordBatch& a, const RecordBatch& b) {
  return a.number == b.number && a.moment == b.moment && a.time_ns == b.time_ns &&
         same(a.eps, b.eps) && same(a.rows, b.rows) && same(a.checks, b.checks) &&
         same(a.samples, b.samples) && same(a.outcomes, b.outcomes) && same(a.scalars, b.scalars) &&
         same(a.payloads, b.payloads) && same(a.declared, b.declared) && same(a.alerts, b.alerts) &&
         same(a.gaps, b.gaps);
}

// The shape of a row as read_log() gives it; nullopt: not known.
inline std::optional<Shape> shape_read(const LogContents& contents, const RecordBatch& batch,
                                       const Row& row) {
  if (row.shape == kUnknownShape) return std::nullopt;
  if (row.shape == kFullShape) return contents.series.at(row.key.series).full_shape;
  return batch.shapes.at(row.shape - kFirstShape);
}
inline std::optional<Shape> shape_written(const SeriesTable& series, const Row& row) {
  const Shape* shape = series.shape_of(row);
  return shape == nullptr ? std::nullopt : std::optional(*shape);
}

}  // namespace trainmon
