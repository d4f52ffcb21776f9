// Which layer a parameter or a module belongs to.
#pragma once

#include <string>
#include <string_view>

namespace trainmon {

// "layers.3" of "layers.3.mlp.weight": up to the first number of the name. Without a number what
// holds it, "embedding" of "embedding.weight"; empty for what the root module holds.
std::string layer_of(std::string_view name);

}  // namespace trainmon
