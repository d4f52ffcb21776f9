// What is said of a step in which lines left their histories.
#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "answers/diagnose.h"
#include "answers/left_history.h"
#include "base/text.h"
#include "model/first_bad.h"
#include "model/kinds.h"

namespace trainmon {
namespace {

// "rank 1", "ranks 0-1"
std::string whose_text(const std::vector<int>& ranks) {
  return (ranks.size() == 1 ? "rank " : "ranks ") + ranks_text(ranks);
}

// The norm of all gradients is that of one optimizer.
std::string of_all_text(const Diagnosis& diagnosis, const Series& series) {
  const auto is_other = [&](const detect::Tensor& one) {
    return one.optimizer != series.optimizer;
  };
  const bool has_others = std::ranges::any_of(diagnosis.tensors, is_other);
  return std::string(kAllTensors) +
         (has_others ? " of optimizer " + std::to_string(series.optimizer) : "");
}

std::string plain_measure_of(const LeftStep& left) {
  if (left.series.kind == kLogged) return "value";
  if (left.measure == Measure::zeros) return "zeros";
  if (left.measure == Measure::largest) return "max";
  if (left.measure == Measure::rows) return "rows";
  if (left.measure == Measure::still) return "still";
  if (left.measure == Measure::dtype) return "dtype";
  if (left.measure == Measure::sum) return "sum";
  if (left.measure == Measure::repeats) return "repeats";
  if (left.measure == Measure::given) return "given";
  if (left.measure == Measure::jump) return "jump";
  if (left.measure == Measure::jump_of_zeros) return "jump_of_zeros";
  if (left.measure != Measure::norm) return "mean";
  return left.series.kind == kind::kInputEntropy ? "entropy" : "norm";
}

}  // namespace

std::string measure_of(const LeftStep& left) {
  return plain_measure_of(left) + (left.is_spread ? "_spread" : "");
}

namespace {

// "actv (root) input.0"
std::string line_text(const Diagnosis& diagnosis, const Series& series) {
  const detect::Tensor tensor = {series.name, series.chunk, series.optimizer, series.element};
  return printable(series.kind) + " " +
         (series.element == kAllTensors ? of_all_text(diagnosis, series)
                                        : detect::tensor_text(tensor));
}

}  // namespace

std::string place_text(const Diagnosis& diagnosis, const LeftStep& left) {
  std::string start;
  if (diagnosis.run.newest_restart > 0) {
    start = left.begins ? ", where restart " + std::to_string(left.row.restart) + " begins"
                        : ", restart " + std::to_string(left.row.restart);
  }
  return "step " + std::to_string(left.row.step) + start + ", " + whose_text(left.ranks) + ", " +
         line_text(diagnosis, left.series);
}

namespace {

std::string measure_text(const LeftStep& left) {
  if (left.measure == Measure::mean) return "mean over its root mean square";
  if (left.measure == Measure::zeros) return "share of zeros";
  if (left.measure == Measure::largest) return "largest id";
  return plain_measure_of(left);
}

std::string spread_text(const LeftStep& left) {
  if (left.measure == Measure::zeros) {
    return " is the same in each row from here on, and was another one in almost each row before";
  }
  return std::string(" swings ") + (left.norm > left.usual ? "more" : "less") +
         " from here on: the standard deviation of " +
         (left.measure == Measure::norm ? "the logarithms of " : "") + std::to_string(left.means) +
         " values is " + number_text(left.norm, 3) + ", and before it was " +
         number_text(left.usual, 3);
}

// The number of an input whose means are compared.
std::string input_text(const Series& series) {
  if (series.kind == kind::kInputEntropy) return "entropy";
  return is_of_ids(series.dtype) ? "mean" : "root mean square";
}

std::string jump_text(const LeftStep& left) {
  std::string text = left.measure == Measure::jump ? "its root mean square" : "its share of zeros";
  if (left.over && left.over->element == kAllTensors) {
    text += ", over the mean of all " + printable(left.over->kind) + ",";
  } else if (left.over) {
    text += ", over that of " + printable(left.over->kind) + " " +
            detect::tensor_text(
                {left.over->name, left.over->chunk, left.over->optimizer, left.over->element}) +
            ",";
  }
  return text + " is " + number_text(left.norm, 3) + " in the mean of " +
         std::to_string(left.means) + " steps from here on, and was " + number_text(left.usual, 3) +
         " before; " + number_text(left.score, 3) +
         " standard errors beside its trend, and less than half of that at any step before";
}

// Of what is no matter of size.
std::string change_text(const LeftStep& left) {
  const auto longest = static_cast<std::int64_t>(left.usual);
  const auto often = [&](const std::string& one) {
    return (longest == 1 ? "in each " + one
                         : "at least every " + grouped(longest) + " " + one + "s");
  };
  if (left.measure == Measure::dtype) {
    const auto name = [](double number) {
      return std::string(dtype_name(static_cast<DType>(number)));
    };
    return "it is " + name(left.norm) + " from here on, and was " + name(left.usual) + " before";
  }
  if (left.measure == Measure::sum) {
    return "its sum over that of its module's output gradients is " + number_text(left.norm, 3) +
           " of that of other biases, and was 1 of it in each step before";
  }
  if (left.measure == Measure::given) {
    return "its " + input_text(left.series) + " is " + number_text(left.norm, 4) +
           " in the mean of the " + std::to_string(left.means) +
           " steps from here on, over all ranks, and was " + number_text(left.usual, 4) +
           " before; " + number_text(left.score, 3) + " standard errors";
  }
  if (left.measure == Measure::repeats) {
    return "its " + input_text(left.series) + " goes with that of " + std::to_string(left.means) +
           " steps before from here on, by a correlation of " + number_text(left.norm, 3) +
           ": batches come in one order, or the random numbers of an augmentation begin anew";
  }
  if (left.measure == Measure::jump || left.measure == Measure::jump_of_zeros) {
    return jump_text(left);
  }
  if (left.measure == Measure::still) {
    return "its norm does not change any more, and did so " + often("row") + " before";
  }
  return (left.series.kind == kind::kActvGrad ? "no gradient reaches it from here on, and one did "
                                              : "it is not there from here on, and was ") +
         often("step") + " of its module before";
}

std::string beside_text(const LeftStep& left) {
  const auto number = [&](double of_rank) {
    return left.is_difference ? number_text(of_rank, 3) + " more than"
                              : number_text(of_rank, 4) + " times";
  };
  return " is " + number(left.norm) + " that on rank " + std::to_string(left.beside) +
         " in the mean of " + std::to_string(left.means) + " steps from here on, and was " +
         number(left.usual) + " it before; " + number_text(left.score, 3) + " standard errors";
}

std::string size_text(const LeftStep& left) {
  if (left.measure >= Measure::rows) return change_text(left);
  std::string text = "its " + measure_text(left);
  if (left.ranks.size() > 1) text = "on rank " + std::to_string(left.row.rank) + " " + text;
  if (left.is_spread) return text + spread_text(left);
  if (left.beside >= 0) return text + beside_text(left);
  text += " is ";
  if (left.measure == Measure::largest) {
    return text + number_text(left.norm, 6) + ", and was " + number_text(left.usual, 6) +
           " in most rows before, and in none of the next " +
           std::to_string(MissingLargest::kMissing - 1);
  }
  if (left.measure == Measure::balance && left.norm < left.usual) {
    return text + "0 of its root mean square, but for rounding; it was " +
           number_text(left.usual, 3) + " before";
  }
  if (left.measure == Measure::balance) {
    return text + number_text(left.norm, 3) +
           " of its root mean square; it was 0 before, but for rounding";
  }
  text += number_text(left.norm, 3) + ", the median before is " + number_text(left.usual, 3) + "; ";
  if (left.is_difference) {
    return text + "the mean of " + std::to_string(left.means) +
           " values from here on is off that of the 16 before by " + number_text(left.apart, 3);
  }
  if (left.apart == 0.0) {
    text += number_text(left.score, 3) + " robust standard deviations off";
    if (left.again == 0) return text;
    return text + ", and " + std::to_string(left.again) + " of the next " +
           std::to_string(LeftLines::kAgain - 1) + " rows are as far off";
  }
  if (left.means > 0) {
    return text + "the mean of " + std::to_string(left.means) +
           " values from here on is off that of the 16 before by a factor of " +
           number_text(left.apart, 3);
  }
  return text + "the " + std::to_string(LeftLines::kStays) + " values from here on are all " +
         (left.norm > left.usual ? "above" : "below") + " the 16 before, by a factor of at least " +
         number_text(left.apart, 3);
}

std::string loss_text(const LeftLoss& loss) {
  return "logged " + printable(loss.name) + " too, on " + whose_text(loss.ranks) + ": " +
         number_text(loss.value, 3) + ", the median before is " + number_text(loss.usual, 3);
}

std::string others_text(std::size_t others) {
  return grouped(static_cast<std::int64_t>(others)) + (others == 1 ? " more line" : " more lines") +
         " in this step";
}

}  // namespace

std::string size_text(const Diagnosis& diagnosis, const LeftHistory& left) {
  std::string text = size_text(static_cast<const LeftStep&>(left));
  if (left.lines > 1) {
    text += "\n  " + others_text(left.lines - 1);
    if (!left.module.empty()) text += "; all are in " + printable(left.module);
    for (const Series& series : left.next) {
      text += (&series == &left.next.front() ? "\n  then " : ", ") + line_text(diagnosis, series);
    }
  }
  if (left.loss) text += "\n  " + loss_text(*left.loss);
  if (left.before == Unmoved::forward) {
    text += "\n  no input and no activation changed as clearly";
    if (left.less_clear.empty()) {
      text +=
          ": the loss may be another one, or its targets, or inputs that do not belong together";
    }
    for (const Series& series : left.less_clear) {
      text += (&series == &left.less_clear.front() ? "; these changed by less: " : ", ") +
              line_text(diagnosis, series);
    }
  }
  if (left.beside >= 0) {
    text += "\n  rank " + std::to_string(left.row.rank) +
            " changed more, and both hold the same weights: what one of them was given, or how it "
            "computes, may be wrong";
  }
  if (left.before == Unmoved::ranks) {
    text +=
        "\n  other ranks hold the same weights and show less or nothing of it: what this rank was "
        "given may be wrong, or how it computes";
  }
  if (left.before == Unmoved::backward) {
    text +=
        "\n  no activation and no gradient of one changed as clearly: gradients may be clipped, "
        "scaled or reduced in another way";
  }
  for (const LeftStep& other : left.others) {
    text += "\nalso " + place_text(diagnosis, other) + "\n  " + size_text(other);
    if (other.lines > 1) text += "; " + others_text(other.lines - 1);
  }
  return text;
}

std::string next_command(const LeftHistory& left, const std::filesystem::path& run) {
  const auto query = [&](const std::string& sql) {
    return "trainmon query " + shell_word(run.native()) + " " + shell_word(sql);
  };
  const bool is_of_many = left.measure == Measure::given || left.measure == Measure::repeats;
  const std::int64_t before = is_of_many ? left.means : static_cast<std::int64_t>(History::kLeast);
  const std::int64_t after = is_of_many ? left.means : LeftLines::kStays;
  const std::int64_t first = std::max<std::int64_t>(0, left.row.step - before);
  const std::int64_t last = left.row.step + after - 1;
  const std::string steps =
      "step BETWEEN " + std::to_string(first) + " AND " + std::to_string(last);
  if (left.series.kind == kLogged) {
    std::string name;  // as SQL has it
    for (const char c : left.series.name) name += c == '\'' ? "''" : std::string(1, c);
    return query("SELECT step, rank, value FROM logged WHERE name = '" + name + "' AND " + steps);
  }
  if (left.series.element == kAllTensors) {
    return query("SELECT step, sqrt(sum(norm * norm)) AS norm FROM rows WHERE kind = '" +
                 left.series.kind + "' AND rank = " + std::to_string(left.row.rank) +
                 " AND optimizer = " + std::to_string(left.series.optimizer) + " AND " + steps +
                 " GROUP BY step");
  }
  const std::string& name = left.series.name;
  const std::string command = "trainmon show " + shell_word(run.native()) + " --kind " +
                              shell_word(left.series.kind) + " --name " +
                              shell_word(name.empty() ? "(root)" : name);
  return command + " --rank " + std::to_string(left.row.rank) + " --steps " +
         std::to_string(first) + ":" + std::to_string(last);
}

}  // namespace trainmon
