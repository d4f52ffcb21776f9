// Names of tensors such that those of a wrapped and of a bare model are equal.
#pragma once

#include <string>
#include <string_view>

namespace trainmon {

// What a tensor of a run is matched by: its name without wrappers, joined with its element.
// "fc" and "input.0", "fc" and "input", "fc.input_0" and "fc.input" are all one: sources join them
// or not, and number a single input or not.
std::string matched_name(std::string_view unwrapped, std::string_view element);

}  // namespace trainmon
