// A comparison in sentences.
#include <cmath>

#include "base/text.h"
#include "compare/compare.h"

namespace trainmon {

std::string tensor_text(const Difference& found) {
  std::string text = found.chunk == 0 ? "" : "chunk " + std::to_string(found.chunk) + ": ";
  text += found.name.empty() ? "(root)" : printable(found.name);
  return found.element.empty() ? text : text + " " + printable(found.element);
}

std::string place_text(const Difference& found) {
  return "step " + std::to_string(found.step) + ", " +
         (found.rank < 0 ? "over all ranks" : "rank " + std::to_string(found.rank)) + ", " +
         printable(found.kind) + " " + tensor_text(found);
}

std::string size_text(const Difference& found) {
  const std::string sizes =
      found.stat + " is " + number_text(found.a, 5) + " in A, " + number_text(found.b, 5) + " in B";
  if (std::isinf(found.ratio)) return sizes + ", which no tolerance allows";
  return sizes + ": relative difference " + number_text(found.difference, 3) + ", " +
         number_text(found.ratio, 3) + " times what is tolerated there";
}

std::string extent_text(const CompareReport& report) {
  if (!report.first) {
    return "no difference beyond tolerance in " + grouped(report.rows) + " rows of " +
           grouped(report.tensors) + " tensors";
  }
  return grouped(report.beyond) + " of " + grouped(report.rows) + " rows and " +
         grouped(report.tensors_beyond) + " of " + grouped(report.tensors) +
         " tensors are beyond tolerance";
}

std::string declared_text(const DeclaredDifference& one) {
  const auto value = [](const std::string& text) {
    return text.empty() ? "none" : printable(text);
  };
  return printable(one.name) + " of " +
         (one.optimizer == 0 ? "" : "optimizer " + std::to_string(one.optimizer) + ", ") +
         "group " + std::to_string(one.group) + " differs from step " + std::to_string(one.step) +
         " on: " + value(one.a) + " in A, " + value(one.b) + " in B" +
         (one.ranks.empty() ? "" : " (ranks " + ranks_text(one.ranks) + ")");
}

}  // namespace trainmon
