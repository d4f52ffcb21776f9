// Tests of the configuration: parsing, faults, effective values, kinds and name patterns.
#include "trainmon/config.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <clocale>
#include <limits>
#include <random>
#include <regex>
#include <span>

#include "config/key_table.h"

namespace trainmon {
namespace {

std::vector<std::string> faults_of(std::string_view text) {
  try {
    config_from_json(text);
  } catch (const ConfigError& error) {
    return error.faults();
  }
  return {};
}

std::string only_fault(std::string_view text) {
  const std::vector<std::string> faults = faults_of(text);
  EXPECT_EQ(faults.size(), 1u) << text;
  return faults.empty() ? "" : faults[0];
}

bool contains(const std::string& text, std::string_view part) {
  return text.find(part) != std::string::npos;
}

TEST(ConfigParse, EmptyObjectGivesTheDefaults) {
  const Config config = config_from_json("{}");
  EXPECT_EQ(config.kinds, std::vector<std::string>{"grads"});
  EXPECT_EQ(config.every, std::nullopt);
  EXPECT_EQ(config.sinks, std::vector<std::string>{"log"});
  EXPECT_EQ(config.queue_mb, 64.0);
  EXPECT_EQ(config.overflow, Overflow::drop_newest);
  EXPECT_TRUE(config.input_grads);
}

TEST(ConfigParse, EveryKeyIsRead) {
  const Config config = config_from_json(R"({
    "kinds": ["weights", "actv"], "include": ["layers.*"], "exclude": ["**.bias"], "every": 7,
    "start_step": 3, "stop_step": 30, "ranks": [0, 5], "out": "a/ü", "sinks": ["memory", "log"],
    "eps": 1e-5, "threads": 4, "input_grads": false, "grad_acc_steps": 8, "start_iteration": 100,
    "clock": 1, "backend": "ops", "queue_mb": 1.5, "overflow": "block", "flush_seconds": 0.25,
    "stop_timeout_seconds": 5, "device_timeout_seconds": 9.5, "segment_mb": 2, "latest_mb": 3, "tensorboard_tags": 50, "budget": "2.5%",
    "recorder_mb": 2.5, "fsync": "flush", "allow_volume": true, "moments_at": "before_step", "modules": "blocks", "attention_modules": ["**.attn"],
    "attention_layout": "sbhd", "attention_causal": "yes", "spectral_modules": ["head"],
    "router_modules": ["**.gate"], "collectives": "all", "collective_inputs": true,
    "collective_callers": ["train.py\\[23\\]"], "alert_deviation": 0.5, "alert_limit": 1e10,
    "alert_stats": ["max"], "alert_warmup": 3})");
  EXPECT_EQ(config.moments_at, "before_step");
  EXPECT_EQ(config.modules, "blocks");
  EXPECT_EQ(config.attention_modules, std::vector<std::string>{"**.attn"});
  EXPECT_EQ(config.attention_layout, "sbhd");
  EXPECT_EQ(config.attention_causal, "yes");
  EXPECT_EQ(config.spectral_modules, std::vector<std::string>{"head"});
  EXPECT_EQ(config.router_modules, std::vector<std::string>{"**.gate"});
  EXPECT_EQ(config.collectives, "all");
  EXPECT_TRUE(config.collective_inputs);
  EXPECT_EQ(config.collective_callers, std::vector<std::string>{"train.py\\[23\\]"});
  EXPECT_EQ(config.alert_deviation, 0.5);
  EXPECT_EQ(config.alert_limit, 1e10);
  EXPECT_EQ(config.alert_stats, std::vector<std::string>{"max"});
  EXPECT_EQ(config.alert_warmup, 3);
  EXPECT_EQ(config.kinds, (std::vector<std::string>{"weights", "actv"}));
  EXPECT_EQ(config.include, std::vector<std::string>{"layers.*"});
  EXPECT_EQ(config.exclude, std::vector<std::string>{"**.bias"});
  EXPECT_EQ(config.every, 7);
  EXPECT_EQ(config.budget, 0.025);
  EXPECT_EQ(config.start_step, 3);
  EXPECT_EQ(config.stop_step, 30);
  EXPECT_EQ(config.ranks, (std::vector<int>{0, 5}));
  EXPECT_EQ(config.out, "a/ü");
  EXPECT_EQ(config.sinks, (std::vector<std::string>{"memory", "log"}));
  EXPECT_EQ(config.eps, 1e-5);
  EXPECT_EQ(config.threads, 4);
  EXPECT_FALSE(config.input_grads);
  EXPECT_EQ(config.grad_acc_steps, 8);
  EXPECT_EQ(config.start_iteration, 100);
  EXPECT_EQ(config.clock, 1);
  EXPECT_EQ(config.backend, BackendChoice::ops);
  EXPECT_EQ(config.queue_mb, 1.5);
  EXPECT_EQ(config.overflow, Overflow::block);
  EXPECT_EQ(config.flush_seconds, 0.25);
  EXPECT_EQ(config.stop_timeout_seconds, 5.0);
  EXPECT_EQ(config.device_timeout_seconds, 9.5);
  EXPECT_EQ(config.segment_mb, 2.0);
  EXPECT_EQ(config.latest_mb, 3.0);
  EXPECT_EQ(config.tensorboard_tags, 50);
  EXPECT_EQ(config.recorder_mb, 2.5);
  EXPECT_EQ(config.fsync, "flush");
  EXPECT_TRUE(config.allow_volume);
}

// With as many keys as members, which the compiler checks, each member has a key.
TEST(ConfigKeys, NoTwoKeysShareAMember) {
  const std::span<const Key> keys = key_table();
  ASSERT_GT(keys.size(), 40u);
  for (std::size_t i = 0; i < keys.size(); ++i) {
    for (std::size_t j = 0; j < i; ++j) {
      EXPECT_NE(keys[i].field, keys[j].field) << keys[i].name << " and " << keys[j].name;
    }
  }
}

TEST(ConfigParse, WrittenAndReadBackIsTheSame) {
  Config config;
  config.kinds = {"moments"};
  config.every = 9007199254740992;
  config.out = "quote \" backslash \\ newline \n";
  config.eps = 0.1;
  config.overflow = Overflow::drop_oldest;
  const std::string text = config_to_json(config);
  EXPECT_EQ(config_to_json(config_from_json(text)), text);
  EXPECT_EQ(config_from_json(text).every, config.every);
  EXPECT_EQ(config_from_json(text).out, config.out);
  EXPECT_EQ(config_from_json(text).eps, 0.1);
  EXPECT_TRUE(contains(text, "\"stop_step\": null"));
}

TEST(ConfigParse, AllFaultsAtOnce) {
  const std::vector<std::string> faults = faults_of(
      R"({"evry": 10, "kinds": ["gards", 3, "grads", "grads"], "queue_mb": 0, "threads": "four",
          "stop_step": 5, "start_step": 5, "eps": 1e-3, "eps": 1e-4})");
  ASSERT_EQ(faults.size(), 8u);
  const auto one_has = [&](std::string_view part) {
    return std::count_if(faults.begin(), faults.end(),
                         [&](const std::string& fault) { return contains(fault, part); }) == 1;
  };
  EXPECT_TRUE(one_has(R"("evry" = 10: unknown key; did you mean "every"?)"));
  EXPECT_TRUE(one_has(R"(kinds[0] = "gards": must be one of grads weights)"));
  EXPECT_TRUE(one_has(R"(did you mean "grads"?)"));
  EXPECT_TRUE(one_has("kinds[1] = 3"));
  EXPECT_TRUE(one_has(R"(kinds[3] = "grads": appears twice)"));
  EXPECT_TRUE(one_has("queue_mb = 0: must be a number from 0.001 to 1000000"));
  EXPECT_TRUE(one_has(R"(threads = "four": must be an integer from 1 to 256)"));
  EXPECT_TRUE(one_has("stop_step = 5: must be greater than start_step (5)"));
  EXPECT_TRUE(one_has(R"(key "eps" appears twice)"));
}

TEST(ConfigParse, TheMessageListsEveryFault) {
  try {
    config_from_json(R"({"every": 0, "clock": -1})");
    FAIL();
  } catch (const ConfigError& error) {
    EXPECT_EQ(std::string(error.what()),
              "[config] 2 faults:\n"
              "  clock = -1: must be an integer of at least 0\n"
              "  every = 0: must be an integer of at least 1, or null");
  }
}

TEST(ConfigParse, SyntaxErrorsSayLineAndColumn) {
  EXPECT_TRUE(only_fault("{\n  \"every\": 1,\n  \"ü\": x\n}").starts_with("line 3, column 8: "));
  EXPECT_TRUE(only_fault("").starts_with("line 1, column 1: "));
  EXPECT_TRUE(only_fault("{} {}").starts_with("line 1, column 4: "));
  EXPECT_TRUE(only_fault("{\"eps\":\n 1e999}").starts_with("line 2, column "));
  EXPECT_TRUE(contains(only_fault("{\"every\": 1,}"), "line 1, column 13"));
  EXPECT_TRUE(contains(only_fault("{\"every\": 1 // one\n}"), "line 1, column 13"));
  EXPECT_TRUE(only_fault("{\"out\": \"\xff\"}").starts_with("line 1, column 10: "));
  EXPECT_FALSE(contains(only_fault("{"), "json.exception"));
}

TEST(ConfigParse, Limits) {
  const std::string deep = R"({"every": )" + std::string(32, '[') + std::string(32, ']') + "}";
  EXPECT_TRUE(contains(only_fault(deep), "nested deeper than 32 levels"));
  const std::string shallow = R"({"every": )" + std::string(31, '[') + std::string(31, ']') + "}";
  EXPECT_TRUE(contains(only_fault(shallow), "every = [["));
  EXPECT_TRUE(contains(only_fault(std::string(100'000'000, '[')), "at most 1048576"));
  EXPECT_TRUE(faults_of(std::string((1 << 20) - 2, ' ') + "{}").empty());
  EXPECT_EQ(faults_of(std::string((1 << 20) - 1, ' ') + "{}").size(), 1u);
}

TEST(ConfigParse, NumbersAtTheEdges) {
  EXPECT_EQ(config_from_json(R"({"every": 10.0})").every, 10);
  EXPECT_EQ(config_from_json(R"({"every": 1e3})").every, 1000);
  for (const char* bad : {"1.5", "true", "\"1\"", "[1]", "{}", "0", "-1", "9007199254740993",
                          "18446744073709551616", "1e300"}) {
    EXPECT_EQ(faults_of(std::string(R"({"every": )") + bad + "}").size(), 1u) << bad;
  }
  EXPECT_EQ(faults_of(R"({"clock": 2147483648})").size(), 1u);
  EXPECT_EQ(faults_of(R"({"clock": null})").size(), 1u);
  EXPECT_EQ(config_from_json(R"({"clock": 2147483647})").clock, 2147483647);
}

TEST(ConfigParse, LocaleDoesNotMatter) {
  // Any locale with a decimal comma; without one installed the check still runs under "C".
  for (const char* name : {"de_DE.UTF-8", "fr_FR.UTF-8", "C"}) {
    if (std::setlocale(LC_ALL, name) == nullptr) continue;
    const Config config = config_from_json(R"({"flush_seconds": 0.25})");
    const std::string text = config_to_json(config);
    std::setlocale(LC_ALL, "C");
    EXPECT_EQ(config.flush_seconds, 0.25);
    EXPECT_TRUE(contains(text, "\"flush_seconds\": 0.25"));
    break;
  }
}

TEST(ConfigParse, LongValuesAreShortened) {
  const std::string fault = only_fault(R"({"every": ")" + std::string(5000, 'x') + "\"}");
  EXPECT_LT(fault.size(), 300u);
  EXPECT_TRUE(contains(fault, "xxx..."));
}

TEST(ConfigValidate, TypedFaults) {
  Config config;
  EXPECT_TRUE(validate(config).empty());
  config.eps = std::numeric_limits<double>::quiet_NaN();
  config.queue_mb = std::numeric_limits<double>::infinity();
  config.threads = 0;
  config.kinds = {};
  config.overflow = static_cast<Overflow>(9);
  config.out = std::string("a\0b", 3);
  const std::vector<std::string> faults = validate(config);
  ASSERT_EQ(faults.size(), 6u);
  EXPECT_EQ(faults[0].substr(0, 11), "kinds = []:");
  EXPECT_TRUE(contains(faults[2], "eps = nan"));
  EXPECT_TRUE(contains(faults[4], "queue_mb = inf"));
}

TEST(ConfigKinds, GroupsExpandInAFixedOrder) {
  using Names = std::vector<std::string>;
  EXPECT_EQ(expand_kinds({"grads"}), (Names{"grad_unreduced", "grad_reduced"}));
  EXPECT_EQ(expand_kinds({"activations", "moments", "weights", "grads"}),
            (Names{"grad_unreduced", "grad_reduced", "param_origin", "param_updated", "moments",
                   "actv", "actv_grad"}));
  EXPECT_EQ(expand_kinds({"actv_grad", "grad_reduced", "grads"}),
            (Names{"grad_unreduced", "grad_reduced", "actv_grad"}));
  EXPECT_EQ(expand_kinds({"square_avg", "exp_avg"}), (Names{"exp_avg", "square_avg"}));
  // Not attention, whose layout is a choice, and no state that moments has already.
  EXPECT_EQ(expand_kinds({"all"}),
            (Names{"grad_unreduced", "grad_micro", "grad_reduced", "param_origin", "param_updated",
                   "moments", "actv", "actv_grad", "cc", "mg_direction", "update_ratio", "stack",
                   "stable_rank", "spectral_norm", "router_similarity", "router_entropy"}));
  EXPECT_EQ(expand_kinds({"all", "attn_max"}).size(), 17u);
  EXPECT_EQ(config_from_json(R"({"kinds": ["all"]})").kinds, Names{"all"});
  EXPECT_THROW(expand_kinds({"grad"}), ConfigError);
  EXPECT_THROW(expand_kinds({""}), ConfigError);
}

struct PatternCase {
  const char* pattern;
  const char* name;
  bool taken;
};

TEST(ConfigNames, ComponentBoundaries) {
  const PatternCase cases[] = {
      {"layers.1", "layers.1", true},
      {"layers.1", "layers.1.weight", true},
      {"layers.1", "layers.10", false},
      {"layers.1", "layers.10.weight", false},
      {"layers.1", "encoder.layers.1", false},
      {"layers", "layers.3", true},
      {"layer", "layers.3", false},
      {"layers.1.weight", "layers.1", false},
      {"layers.*", "layers", false},
      {"layers.*", "layers.7.bias", true},
      {"layers.1*", "layers.10", true},
      {"layers.1*", "layers.2", false},
      {"*.weight", "a.weight", true},
      {"*.weight", "a.b.weight", false},
      {"**.weight", "weight", true},
      {"**.weight", "a.b.weight", true},
      {"**.weight", "a.b.weights", false},
      {"a.**.b", "a.b", true},
      {"a.**.b", "a.x.y.b.z", true},
      {"a.**.b", "a.x.y", false},
      {"**", "", true},
      {"*", "", false},
      {"*", "fc", true},
      {"(root)", "", true},
      {"(root)", "fc", false},
      {"*norm*", "layernorm2", true},
      {"q*k*v", "qxkyv", true},
      {"q*k*v", "qkvx", false},
  };
  for (const PatternCase& c : cases) {
    EXPECT_EQ(name_selected(c.name, {c.pattern}, {}), c.taken) << c.pattern << " on " << c.name;
    EXPECT_EQ(name_selected(c.name, {}, {c.pattern}), !c.taken) << c.pattern << " on " << c.name;
  }
  EXPECT_TRUE(name_selected("anything", {}, {}));
  EXPECT_TRUE(name_selected("", {}, {}));
  EXPECT_FALSE(name_selected("a.bias", {"a"}, {"**.bias"}));
  EXPECT_TRUE(name_selected("a.weight", {"b", "a"}, {"**.bias"}));
}

// The same patterns through std::regex, which shares no code with the matcher.
std::regex as_regex(const std::string& pattern) {
  std::string text = "^";
  std::size_t begin = 0;
  while (begin <= pattern.size()) {
    std::size_t end = pattern.find('.', begin);
    if (end == std::string::npos) end = pattern.size();
    const std::string component = pattern.substr(begin, end - begin);
    if (component == "**") {
      text += "(?:/[^/]*)*";
    } else {
      text += "/";
      for (char letter : component) {
        text += letter == '*' ? std::string("[^/]*") : std::string(1, letter);
      }
    }
    begin = end + 1;
  }
  return std::regex(text + "(?:/[^/]*)*$");
}

TEST(ConfigNames, AgreeWithRegularExpressions) {
  std::mt19937 random(7);
  const auto word = [&](const char* letters, std::size_t count, bool pattern) {
    std::string text;
    const int components = 1 + static_cast<int>(random() % 4);
    for (int i = 0; i < components; ++i) {
      if (i > 0) text += ".";
      if (pattern && random() % 5 == 0) {
        text += "**";
        continue;
      }
      const int length = 1 + static_cast<int>(random() % 3);
      for (int j = 0; j < length; ++j) {
        char letter = letters[random() % count];
        if (letter == '*' && text.ends_with('*')) letter = 'a';
        text += letter;
      }
    }
    return text;
  };
  int taken = 0;
  for (int i = 0; i < 3000; ++i) {
    const std::string pattern = word("ab*", 3, true);
    const std::string name = word("ab", 2, false);
    std::string path = "/" + name;
    std::replace(path.begin(), path.end(), '.', '/');
    const bool expected = std::regex_match(path, as_regex(pattern));
    taken += expected ? 1 : 0;
    ASSERT_EQ(name_selected(name, {pattern}, {}), expected) << pattern << " on " << name;
  }
  EXPECT_GT(taken, 300);
  EXPECT_LT(taken, 2700);
}

// Whatever the bytes, the answer is a Config without faults or a ConfigError.
TEST(ConfigParse, RandomDamageNeverEscapes) {
  const std::string good = config_to_json(Config{});
  std::mt19937 random(11);
  int refused = 0;
  for (int i = 0; i < 5000; ++i) {
    std::string text = good;
    for (unsigned j = 0; j <= random() % 3; ++j) {
      const std::size_t at = random() % text.size();
      switch (random() % 3) {
        case 0:
          text[at] = static_cast<char>(random() % 256);
          break;
        case 1:
          text.erase(at, random() % 20);
          break;
        default:
          text.insert(at, text.substr(random() % text.size(), random() % 20));
      }
    }
    try {
      EXPECT_TRUE(validate(config_from_json(text)).empty()) << text;
    } catch (const ConfigError& error) {
      EXPECT_FALSE(error.faults().empty());
      ++refused;
    }
  }
  EXPECT_GT(refused, 2500);
}

}  // namespace
}  // namespace trainmon
