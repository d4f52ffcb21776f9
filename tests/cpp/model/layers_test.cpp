// Names of odd models: which layer they are in, and what they are in each layer.
#include "model/layers.h"

#include <gtest/gtest.h>

namespace trainmon {
namespace {

std::string part_text(std::string_view name) {
  const std::optional<LayerPart> part = part_of(name);
  return part ? part->pattern + " " + std::to_string(part->layer) : "none";
}

TEST(Layers, APartIsTheNameWithoutItsLayer) {
  EXPECT_EQ(part_text("model.layers.10.attn.q_proj.weight"),
            "model.layers.*.attn.q_proj.weight 10");
  EXPECT_EQ(part_text("blocks.3.experts.7.w1"), "blocks.*.experts.7.w1 3");
  EXPECT_EQ(part_text("h.1.mlp.0.weight"), "h.*.mlp.0.weight 1");
  EXPECT_EQ(part_text("2.weight"), "*.weight 2");
  EXPECT_EQ(part_text("h.007"), "h.* 7");
  EXPECT_EQ(part_text("0"), "* 0");
  EXPECT_EQ(part_text("a..1."), "a..*. 1");
  EXPECT_EQ(part_text("layers.999999999.w"), "layers.*.w 999999999");
}

TEST(Layers, WithoutANumberThereIsNone) {
  for (const char* name : {"", "w", "embed.weight", "fc2.weight", "layer3.w", "a.-1.w", "a.1x.w",
                           "layers.1000000000.w", "."}) {
    EXPECT_EQ(part_text(name), "none") << name;
  }
}

TEST(Layers, ALayerIsTheNameUpToTheFirstNumber) {
  EXPECT_EQ(layer_of("model.layers.10.attn.q.weight"), "model.layers.10");
  EXPECT_EQ(layer_of("blocks.3.experts.7.w1"), "blocks.3");
  EXPECT_EQ(layer_of("2.weight"), "2");
  EXPECT_EQ(layer_of("embed.weight"), "embed");
  EXPECT_EQ(layer_of("w"), "");
  EXPECT_EQ(layer_of(""), "");
}

}  // namespace
}  // namespace trainmon
