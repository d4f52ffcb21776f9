// What the cells of a page say of the whole run: where a NaN went, and which tensors lack steps.
#pragma once

#include <nlohmann/json.hpp>

#include "answers/diagnose.h"
#include "report/gather.h"

namespace trainmon::page {

// Whether cells of a page are of what a finding names: its run, tensor, element and ranks.
bool is_named(const Diagnosis& diagnosis, const detect::Finding& finding, const Gathered& gathered,
              int run, const Line& line);

// Of a verdict `finite`, an object with these keys; null without such a verdict.
//   "last"    [first, last] step of the last column in which its tensors have a NaN or an infinity,
//             null of a loss
//   "others"  how many other tensors have one there or later
//   "names"   the first three of them
//   "first"   as "last", of the first of them
nlohmann::ordered_json spread_json(const Diagnosis& diagnosis, const Gathered& gathered, int run);

// Tensors without columns that their rank has of the kind, and that were not lost. Those that
// lack the same are one object of the list; those with most tensors lead.
//   "kinds"
//   "names"    three at most
//   "tensors"  how many
//   "columns"  how many they lack
//   "steps"    [[first, last], ...]
nlohmann::ordered_json lacking_json(const Gathered& gathered, int run);

}  // namespace trainmon::page
