// Which layer a parameter or a module belongs to, and what it is in each layer.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace trainmon {

// "layers.3" of "layers.3.mlp.weight": up to the first number of the name. Without a number what
// holds it, "embedding" of "embedding.weight"; empty for what the root module holds.
std::string layer_of(std::string_view name);

// What a name is in each layer: "layers.*.mlp.0.weight" and layer 3 of "layers.3.mlp.0.weight". The
// first number is the layer and becomes a "*", so that the pattern is one of `--name`. nullopt
// without a number, and where the first one has more than nine digits.
struct LayerPart {
  std::string pattern;
  std::int64_t layer = 0;
};
std::optional<LayerPart> part_of(std::string_view name);

}  // namespace trainmon
