// Names of wrapped models and of bare ones.
#include "compare/compared_names.h"

#include <gtest/gtest.h>

#include "compare/compare.h"

namespace trainmon {
namespace {

TEST(ComparedNames, WrappersAreStrippedWhereverTheyStand) {
  for (const char* name :
       {"blocks.0.fc.weight", "module.blocks.0.fc.weight", "module.module.blocks.0.fc.weight",
        "_orig_mod.module.blocks.0.fc.weight",
        "_fsdp_wrapped_module.blocks.0._checkpoint_wrapped_module.fc.weight",
        "blocks.0._fsdp_wrapped_module._orig_mod.fc._fpw_module.weight",
        "_forward_module.blocks._original_module.0.fc._offload_wrapped_module.weight"}) {
    EXPECT_EQ(unwrapped_name(name), "blocks.0.fc.weight") << name;
  }
}

TEST(ComparedNames, WhatOnlyLooksLikeOneStays) {
  for (const char* name : {"my_module.weight", "modules.0", "_orig_mode", "a_orig_mod.b", ""}) {
    EXPECT_EQ(unwrapped_name(name), name);
  }
  EXPECT_EQ(unwrapped_name("module"), "");  // the root of a wrapped model
}

TEST(ComparedNames, ElementsOfSourcesThatJoinThemAndOfThoseThatDoNot) {
  EXPECT_EQ(matched_name("fc", "input.0"), matched_name("fc.input", ""));
  EXPECT_EQ(matched_name("fc", "output"), matched_name("fc.output_0", ""));
  EXPECT_EQ(matched_name("fc", "input.1"), matched_name("fc.input_1", ""));
  EXPECT_EQ(matched_name("", "output"), matched_name("output", ""));
  EXPECT_NE(matched_name("fc", "input.1"), matched_name("fc", "input.0"));
  EXPECT_NE(matched_name("fc", "input.10"), matched_name("fc", "input.1"));
  EXPECT_NE(matched_name("fc", "output.logits"), matched_name("fc", "output"));
  // Parameters may be called so, too.
  EXPECT_EQ(matched_name("output.weight", ""), "output.weight");
  EXPECT_EQ(matched_name("layer_output.0", ""), "layer_output.0");
}

}  // namespace
}  // namespace trainmon
