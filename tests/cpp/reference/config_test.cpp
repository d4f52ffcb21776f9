// The examples of the C++ reference: the configuration, and changes while a run goes on.
#include "trainmon/config.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <string>
#include <vector>

#include "trainmon/control.h"

namespace trainmon {
namespace {

// example config.h: A configuration from JSON, and back
TEST(Reference, Config) {
  const Config config = config_from_json(R"({"kinds": ["grads"], "every": 10, "backend": "ops"})");
  EXPECT_EQ(config.every, 10);
  EXPECT_EQ(config.backend, BackendChoice::ops);
  EXPECT_EQ(config.overflow, Overflow::drop_newest);  // the default
  EXPECT_EQ(config_from_json(config_to_json(config)).every, 10);
  EXPECT_NE(config_schema().find("\"every\""), std::string::npos);
}

// example config.h: Every fault is named
TEST(Reference, Faults) {
  try {
    config_from_json(R"({"evry": 10, "eps": -1})");
    FAIL();
  } catch (const ConfigError& error) {
    EXPECT_EQ(error.faults().size(), 2u);
  }
  Config config;
  EXPECT_TRUE(validate(config).empty());
  config.every = 0;
  EXPECT_EQ(validate(config).size(), 1u);
}

// example config.h: Groups of kinds, and name patterns
TEST(Reference, KindsAndNames) {
  EXPECT_EQ(expand_kinds({"grads"}), (std::vector<std::string>{"grad_unreduced", "grad_reduced"}));
  EXPECT_TRUE(name_selected("layers.1.weight", {"layers.1"}, {}));
  EXPECT_FALSE(name_selected("layers.10.weight", {"layers.1"}, {}));
  EXPECT_FALSE(name_selected("layers.1.bias", {}, {"**.bias"}));
}

// example control.h: What `trainmon ctl` writes, and what follows from it
TEST(Reference, Control) {
  Control control;
  control.number = 1;
  control.set = R"({"every": 5})";
  control.apply_at_step = 100;
  const Control read = control_from_json(control_to_json(control));
  EXPECT_EQ(read.apply_at_step, 100);
  const ControlChange change = {read, with_control(Config(), read)};
  EXPECT_EQ(change.config.every, 5);
  EXPECT_EQ(control_path("runs/a"), std::filesystem::path("runs/a/control.json"));
  EXPECT_EQ(changeable_keys()[0], "kinds");
}

}  // namespace
}  // namespace trainmon
