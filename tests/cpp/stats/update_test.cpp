// The update formulas against optimizers that train: loops in float64 written from the algorithms
// of torch's documentation, whose weights say what the step was.
#include "stats/update.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <functional>
#include <random>
#include <stdexcept>
#include <string>

#include "stats/check_oracle.h"
#include "stats/cpu/level.h"
#include "stats/oracle.h"

namespace trainmon {
namespace {

using test::levels;
using test::same;
using Numbers = std::vector<double>;

constexpr double kLr = 0.01;

// What a step of any optimizer may keep; a name that it does not use stays zero.
struct State {
  Numbers weight, gradient, first, second, third;
  double mu_product = 1.0;
};

// One step in float64: State of the step before in, after it out.
using Step = std::function<void(State&, int step)>;

void adam_step(State& s, int step, bool amsgrad) {
  for (std::size_t i = 0; i < s.weight.size(); ++i) {
    const double g = s.gradient[i];
    s.first[i] = 0.9 * s.first[i] + 0.1 * g;
    s.second[i] = 0.99 * s.second[i] + 0.01 * g * g;
    s.third[i] = std::max(s.third[i], s.second[i]);
    const double v = (amsgrad ? s.third[i] : s.second[i]) / (1 - std::pow(0.99, step));
    const double m = s.first[i] / (1 - std::pow(0.9, step));
    s.weight[i] -= kLr * m / (std::sqrt(v) + 1e-8);
  }
}

void sgd_step(State& s, int step, double momentum, double dampening) {
  for (std::size_t i = 0; i < s.weight.size(); ++i) {
    double g = s.gradient[i];
    if (momentum != 0) {
      s.first[i] = step > 1 ? momentum * s.first[i] + (1 - dampening) * g : g;
      g = s.first[i];
    }
    s.weight[i] -= kLr * g;
  }
}

void rmsprop_step(State& s, double momentum) {
  for (std::size_t i = 0; i < s.weight.size(); ++i) {
    const double g = s.gradient[i];
    s.second[i] = 0.9 * s.second[i] + 0.1 * g * g;
    const double u = g / (std::sqrt(s.second[i]) + 1e-6);
    s.first[i] = momentum * s.first[i] + u;
    s.weight[i] -= kLr * (momentum > 0 ? s.first[i] : u);
  }
}

void adagrad_step(State& s, int step) {
  const double lr = kLr / (1 + (step - 1) * 0.05);
  for (std::size_t i = 0; i < s.weight.size(); ++i) {
    const double g = s.gradient[i];
    s.second[i] += g * g;
    s.weight[i] -= lr * g / (std::sqrt(s.second[i]) + 1e-10);
  }
}

void nadam_step(State& s, int step) {
  const double mu = 0.9 * (1 - 0.5 * std::pow(0.96, step * 0.004));
  const double next = 0.9 * (1 - 0.5 * std::pow(0.96, (step + 1) * 0.004));
  s.mu_product *= mu;
  for (std::size_t i = 0; i < s.weight.size(); ++i) {
    const double g = s.gradient[i];
    s.first[i] = 0.9 * s.first[i] + 0.1 * g;
    s.second[i] = 0.99 * s.second[i] + 0.01 * g * g;
    const double m =
        next * s.first[i] / (1 - s.mu_product * next) + (1 - mu) * g / (1 - s.mu_product);
    const double v = s.second[i] / (1 - std::pow(0.99, step));
    s.weight[i] -= kLr * m / (std::sqrt(v) + 1e-8);
  }
}

void radam_step(State& s, int step) {
  const double longest = 2 / (1 - 0.99) - 1;
  const double power = std::pow(0.99, step);
  const double length = longest - 2 * step * power / (1 - power);
  for (std::size_t i = 0; i < s.weight.size(); ++i) {
    const double g = s.gradient[i];
    s.first[i] = 0.9 * s.first[i] + 0.1 * g;
    s.second[i] = 0.99 * s.second[i] + 0.01 * g * g;
    const double m = s.first[i] / (1 - std::pow(0.9, step));
    if (length > 5) {
      const double l = std::sqrt(1 - power) / (std::sqrt(s.second[i]) + 1e-8);
      const double r = std::sqrt(((length - 4) * (length - 2) * longest) /
                                 ((longest - 4) * (longest - 2) * length));
      s.weight[i] -= kLr * m * r * l;
    } else {
      s.weight[i] -= kLr * m;
    }
  }
}

// The tensors of a state in one type, by name.
class Tensors {
 public:
  Tensors(const State& state, DType dtype) : dtype_(dtype), size_(std::ssize(state.weight)) {
    for (const Numbers* numbers : {&state.gradient, &state.first, &state.second, &state.third}) {
      std::vector<std::byte>& bytes = bytes_.emplace_back(numbers->size() * dtype_size(dtype) + 1);
      for (std::size_t i = 0; i < numbers->size(); ++i) {
        const auto single = static_cast<float>((*numbers)[i]);
        const void* from = dtype == DType::float64 ? static_cast<const void*>(&(*numbers)[i])
                                                   : static_cast<const void*>(&single);
        std::memcpy(&bytes[i * dtype_size(dtype)], from, dtype_size(dtype));
      }
    }
  }
  TensorView gradient() const { return view(0); }
  TensorView first() const { return view(1); }
  TensorView second() const { return view(2); }
  TensorView third() const { return view(3); }

 private:
  TensorView view(std::size_t i) const {
    return {bytes_[i].data(), dtype_, 1, &size_, nullptr, Device::cpu, 0, nullptr};
  }
  DType dtype_;
  std::int64_t size_;
  std::vector<std::vector<std::byte>> bytes_;
};

using Formula = std::function<UpdateFormula(const Tensors&, const State&, int step)>;

struct Optimizer {
  std::string name;
  Step step;
  Formula formula;
};

std::vector<Optimizer> optimizers() {
  return {
      {"Adam", [](State& s, int step) { adam_step(s, step, false); },
       [](const Tensors& t, const State&, int step) {
         return adam_update(t.first(), t.second(), step, 0.9, 0.99, 1e-8);
       }},
      {"Adam with amsgrad", [](State& s, int step) { adam_step(s, step, true); },
       [](const Tensors& t, const State&, int step) {
         return adam_update(t.first(), t.third(), step, 0.9, 0.99, 1e-8);
       }},
      {"SGD", [](State& s, int step) { sgd_step(s, step, 0, 0); },
       [](const Tensors& t, const State&, int) { return plain_update(t.gradient()); }},
      {"SGD with momentum", [](State& s, int step) { sgd_step(s, step, 0.9, 0.1); },
       [](const Tensors& t, const State&, int) { return plain_update(t.first()); }},
      {"RMSprop", [](State& s, int) { rmsprop_step(s, 0); },
       [](const Tensors& t, const State&, int) {
         return rmsprop_update(t.gradient(), t.second(), 1e-6);
       }},
      {"RMSprop with momentum", [](State& s, int) { rmsprop_step(s, 0.9); },
       [](const Tensors& t, const State&, int) { return plain_update(t.first()); }},
      {"Adagrad", [](State& s, int step) { adagrad_step(s, step); },
       [](const Tensors& t, const State&, int step) {
         return adagrad_update(t.gradient(), t.second(), step, 0.05, 1e-10);
       }},
      {"NAdam", [](State& s, int step) { nadam_step(s, step); },
       [](const Tensors& t, const State& s, int step) {
         return nadam_update(t.gradient(), t.first(), t.second(), step, s.mu_product, 0.9, 0.99,
                             1e-8, 0.004);
       }},
      {"RAdam", [](State& s, int step) { radam_step(s, step); },
       [](const Tensors& t, const State&, int step) {
         return radam_update(t.first(), t.second(), step, 0.9, 0.99, 1e-8);
       }},
  };
}

State begin(std::size_t n, std::mt19937_64& random) {
  State state;
  for (Numbers* numbers :
       {&state.weight, &state.gradient, &state.first, &state.second, &state.third}) {
    numbers->assign(n, 0.0);
  }
  std::normal_distribution<double> normal;
  for (double& w : state.weight) w = normal(random);
  return state;
}

void expect_update(const Optimizer& optimizer, const State& after, const Numbers& before, int step,
                   DType dtype, std::int64_t first) {
  SCOPED_TRACE(optimizer.name + ", step " + std::to_string(step));
  Numbers u;
  for (std::size_t i = 0; i < before.size(); ++i) u.push_back((before[i] - after.weight[i]) / kLr);
  const Tensors tensors(after, dtype);
  const UpdateFormula formula = optimizer.formula(tensors, after, step);
  Check check;
  const RowState state = measure(formula, first, check);
  const double rounding = dtype == DType::float64 ? 1e-11 : 1e-6;
  const test::SketchOracle want = test::sketch(u, static_cast<std::uint64_t>(first));
  for (std::size_t i = 0; i < 16; ++i) {
    EXPECT_LE(std::fabs(static_cast<long double>(check.sketch[i]) - want.sum[i]),
              rounding * want.magnitude[i])
        << i;
  }
  const test::Oracle oracle = test::oracle(u, 1e-8, 0);
  EXPECT_NEAR(state.sum_sq / static_cast<double>(oracle.sum_sq), 1.0, 2 * rounding);
  for (const CpuLevel level : levels()) {
    set_cpu_level(level);
    for (const int threads : {1, 2}) {
      Check got;
      EXPECT_TRUE(same(measure(formula, first, got, kDefaultEps, threads), state));
      EXPECT_EQ(got.fingerprint, check.fingerprint);
      EXPECT_EQ(got.sketch, check.sketch);
    }
  }
  set_cpu_level(detected_cpu_level());
}

TEST(Update, EveryFormulaIsTheStepOfItsOptimizer) {
  std::mt19937_64 random(21);
  std::normal_distribution<double> normal;
  for (const Optimizer& optimizer : optimizers()) {
    for (const std::size_t n : {std::size_t{5}, std::size_t{4096}, std::size_t{9001}}) {
      State state = begin(n, random);
      for (int step = 1; step <= 12; ++step) {
        // In float32 exactly, so that both types have the same gradient.
        for (double& g : state.gradient)
          g = static_cast<double>(static_cast<float>(normal(random)));
        const Numbers before = state.weight;
        optimizer.step(state, step);
        if (step != 1 && step != 2 && step != 12) continue;
        expect_update(optimizer, state, before, step, DType::float64, 0);
        expect_update(optimizer, state, before, step, DType::float32, 256 * step + 8 * (step / 2));
      }
    }
  }
}

TEST(Update, ShardsAddUpAndTypesAndLayoutsMix) {
  std::mt19937_64 random(22);
  std::normal_distribution<float> normal;
  constexpr std::int64_t kRows = 300;
  constexpr std::int64_t kColumns = 1000;
  std::vector<float> m(kRows * kColumns);
  std::vector<double> v(m.size());
  std::vector<float> transposed(m.size());
  for (std::size_t i = 0; i < m.size(); ++i) {
    m[i] = normal(random);
    v[i] = std::fabs(static_cast<double>(normal(random)));
    const std::size_t row = i / kColumns;
    transposed[i % kColumns * kRows + row] = m[i];
  }
  const std::int64_t sizes[] = {kRows, kColumns};
  const std::int64_t by_columns[] = {1, kRows};
  const auto view = [&](const void* data, DType dtype, const std::int64_t* strides) {
    return TensorView{data, dtype, 2, sizes, strides, Device::cpu, 0, nullptr};
  };
  const TensorView second = view(v.data(), DType::float64, nullptr);
  Check whole;
  Check turned;
  const RowState state = measure(
      adam_update(view(m.data(), DType::float32, nullptr), second, 3, 0.9, 0.99, 1e-8), 0, whole);
  EXPECT_TRUE(same(measure(adam_update(view(transposed.data(), DType::float32, by_columns), second,
                                       3, 0.9, 0.99, 1e-8),
                           0, turned, kDefaultEps, 2),
                   state));
  EXPECT_EQ(turned.fingerprint, whole.fingerprint);
  EXPECT_EQ(turned.sketch, whole.sketch);
  Check sum;
  for (std::int64_t row = 0; row < kRows; row += 77) {
    const std::int64_t part[] = {std::min<std::int64_t>(77, kRows - row), kColumns};
    const std::int64_t first = row * kColumns;
    Check shard;
    measure(adam_update({m.data() + first, DType::float32, 2, part, nullptr},
                        {v.data() + first, DType::float64, 2, part, nullptr}, 3, 0.9, 0.99, 1e-8),
            first, shard);
    add(sum, shard);
  }
  EXPECT_EQ(sum.fingerprint, whole.fingerprint);
  for (std::size_t i = 0; i < 16; ++i) EXPECT_NEAR(sum.sketch[i], whole.sketch[i], 1e-8) << i;
}

TEST(Update, RefusesWhatHasNoStep) {
  const std::int64_t n[] = {4};
  const std::int64_t more[] = {5};
  const float data[5] = {};
  const TensorView four{data, DType::float32, 1, n, nullptr};
  const TensorView five{data, DType::float32, 1, more, nullptr};
  const TensorView integers{data, DType::int32, 1, n, nullptr};
  Check check;
  EXPECT_THROW(measure(adam_update(four, five, 1, 0.9, 0.99, 1e-8), 0, check),
               std::invalid_argument);
  EXPECT_THROW(measure(adam_update(four, integers, 1, 0.9, 0.99, 1e-8), 0, check),
               std::invalid_argument);
  TensorView elsewhere = four;
  elsewhere.device = Device::cuda;
  EXPECT_THROW(measure(adam_update(four, elsewhere, 1, 0.9, 0.99, 1e-8), 0, check),
               std::invalid_argument);
  const std::int64_t none[] = {0};
  const TensorView empty{data, DType::float32, 1, none, nullptr};
  EXPECT_EQ(measure(plain_update(empty), 0, check).count, 0);
  EXPECT_EQ(check.fingerprint, 0u);
}

}  // namespace
}  // namespace trainmon
