// control.json: what is valid, what is taken of a file that others edit badly, what a monitor sees.
#include "trainmon/control.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <functional>
#include <random>
#include <thread>

#include "base/file.h"
#include "monitor/control_file.h"
#include "read/controls.h"
#include "trainmon/monitor.h"

namespace trainmon {
namespace {

namespace fs = std::filesystem;
using namespace std::chrono_literals;

std::vector<std::string> faults_of(std::string_view text) {
  try {
    with_control(Config(), control_from_json(text));
  } catch (const ConfigError& error) {
    return error.faults();
  }
  return {};
}

TEST(Control, JsonAndBack) {
  const Control control = control_from_json(
      R"({"format": 1, "number": 7, "on": false, "set": {"every": 5}, "apply_at_step": 12})");
  EXPECT_EQ(control.number, 7);
  EXPECT_FALSE(control.on);
  EXPECT_EQ(control.apply_at_step, 12);
  EXPECT_EQ(with_control(Config(), control).every, 5);
  const Control again = control_from_json(control_to_json(control));
  EXPECT_EQ(control_to_json(again), control_to_json(control));
  const Control least = control_from_json(R"({"format": 1})");
  EXPECT_TRUE(least.on);
  EXPECT_FALSE(least.apply_at_step.has_value());
}

TEST(Control, EveryFaultIsNamedAtOnce) {
  const auto faults = faults_of(
      R"({"format": 2, "number": -1, "on": "yes", "apply_at_step": 1.5, "when": 3, "number": 2,
          "set": {"every": 0, "evry": 3, "queue_mb": 3, "include": ["a..b"]}})");
  for (const char* part :
       {"format = 2", "on = \"yes\"", "apply_at_step = 1.5", "\"when\" = 3: unknown key", "twice",
        "every = 0", "did you mean \"every\"?", "queue_mb = 3: does not change", "include[0]"}) {
    const auto names = [&](const std::string& fault) {
      return fault.find(part) != std::string::npos;
    };
    EXPECT_EQ(std::count_if(faults.begin(), faults.end(), names), 1) << part;
  }
  EXPECT_EQ(faults.size(), 9u);
}

TEST(Control, WhatIsNoControl) {
  for (const char* text :
       {"", "{", "[]", "3", "{}", R"({"format": 1)", R"({"format": 1, "set": []})",
        R"({"format": 1, "set": {"start_step": 5, "stop_step": 5}})",
        R"({"format": 1, "number": 1e300})", "{\"format\": 1}\n}"}) {
    EXPECT_FALSE(faults_of(text).empty()) << text;
  }
}

TEST(Control, SetGoesOverWhatTheRunBeganWith) {
  Config began;
  began.start_step = 100;
  Control control;
  control.set = R"({"stop_step": 50})";  // alone it would be fine
  EXPECT_THROW(with_control(began, control), ConfigError);
  control.set = R"({"stop_step": 150, "every": null})";
  EXPECT_EQ(with_control(began, control).stop_step, 150);
  EXPECT_EQ(with_control(began, control).start_step, 100);
}

class ControlFileTest : public testing::Test {
 protected:
  void SetUp() override {
    fs::remove_all(folder_);
    fs::create_directories(folder_);
  }
  void TearDown() override { fs::remove_all(folder_); }
  void write(const std::string& text) { std::ofstream(path_, std::ios::binary) << text; }
  static std::string version(std::int64_t number) {
    Control control;
    control.number = 1'000'000 + number;  // all of one length
    control.set = R"({"every": )" + std::to_string(control.number) + "}";
    return control_to_json(control);
  }

  const fs::path folder_ =
      fs::temp_directory_path() / ("trainmon_control_" + std::to_string(::getpid()));
  const fs::path path_ = control_path(folder_);
  ControlFile file_{path_, Config()};
  ControlFile::Clock::time_point now_ = ControlFile::Clock::now();
};

TEST_F(ControlFileTest, EachVersionOnceEachFaultOnce) {
  EXPECT_FALSE(file_.look(now_));
  write(version(1));
  auto found = file_.look(now_);
  ASSERT_TRUE(found && found->change);
  EXPECT_EQ(found->change->control.number, 1'000'001);
  EXPECT_EQ(found->change->config.every, 1'000'001);
  EXPECT_FALSE(file_.look(now_));

  write(version(2).substr(0, 40));
  found = file_.look(now_ += 1s);
  ASSERT_TRUE(found);
  EXPECT_FALSE(found->change);
  EXPECT_NE(found->fault.find("line"), std::string::npos) << found->fault;
  for (int i = 0; i < 10; ++i) EXPECT_FALSE(file_.look(now_ += 1s)) << "said again";

  write(version(1));  // as before: nothing to do, but no fault any more
  found = file_.look(now_ += 1s);
  ASSERT_TRUE(found);
  EXPECT_FALSE(found->change);
  EXPECT_EQ(found->fault, "");

  write(version(3));
  ASSERT_TRUE(file_.look(now_ += 1s)->change);
  write(version(1));  // an older one, put back
  found = file_.look(now_ += 1s);
  ASSERT_TRUE(found && found->change);
  EXPECT_EQ(found->change->control.number, 1'000'001);
  fs::remove(path_);
  EXPECT_FALSE(file_.look(now_ += 1s)) << "a missing file changes nothing";
}

TEST_F(ControlFileTest, WhatCannotBeReadIsAFault) {
  fs::create_directory(path_);
  auto found = file_.look(now_);
  ASSERT_TRUE(found);
  EXPECT_NE(found->fault.find("not a regular file"), std::string::npos);
  EXPECT_FALSE(file_.look(now_ += 1s));
  fs::remove(path_);
  found = file_.look(now_ += 1s);
  ASSERT_TRUE(found);
  EXPECT_EQ(found->fault, "") << "what was wrong is gone";
  write(std::string((1 << 20) + 1, ' '));
  found = file_.look(now_ += 1s);
  ASSERT_TRUE(found);
  EXPECT_NE(found->fault, "");
  write(version(1));
  EXPECT_TRUE(file_.look(now_ += 1s)->change);
}

TEST_F(ControlFileTest, SameStampOtherContent) {
  write(version(1));
  const auto time = fs::last_write_time(path_);
  ASSERT_TRUE(file_.look(now_)->change);
  write(version(2));  // same size and inode
  fs::last_write_time(path_, time);
  auto found = file_.look(now_ += 1s);
  ASSERT_TRUE(found && found->change);
  EXPECT_EQ(found->change->control.number, 1'000'002);
}

// An editor that tears, garbles and renames, 10,000 times, while somebody looks all the time.
TEST_F(ControlFileTest, OnlyWholeVersionsInOrderAndTheLastOne) {
  constexpr int kVersions = 10'000;
  std::atomic<bool> done{false};
  std::thread editor([&] {
    std::mt19937 random(7);
    for (int i = 1; i <= kVersions; ++i) {
      const std::string text = version(i);
      switch (i == kVersions ? 0 : random() % 5) {
        case 0:  // in place, in two parts
        {
          std::ofstream out(path_, std::ios::binary);
          const std::size_t half = random() % text.size();
          out << text.substr(0, half) << std::flush << text.substr(half);
          break;
        }
        case 1:
          write(text.substr(0, random() % text.size()));
          break;
        case 2: {
          std::string garbage = text;
          garbage[random() % garbage.size()] = static_cast<char>(random() % 256);
          garbage[0] = '[';
          write(garbage);
          break;
        }
        case 3: {  // whole, and wrong: `every` of at least 1
          Control control;
          control.number = 1'000'000 + i;
          control.set = R"({"every": -1000000})";
          write_atomically(path_, control_to_json(control));
          break;
        }
        default:
          write_atomically(path_, text);
      }
    }
    done = true;
  });
  std::vector<std::int64_t> taken;
  int faults = 0;
  int looks_after = 0;
  while (looks_after < 100) {
    if (done) ++looks_after;
    const auto found = file_.look();
    if (!found) continue;
    faults += found->fault.empty() ? 0 : 1;
    if (!found->change) continue;
    EXPECT_EQ(found->change->control.number, found->change->config.every) << "of two versions";
    taken.push_back(found->change->control.number);
  }
  editor.join();
  EXPECT_GT(taken.size(), 10u);
  EXPECT_GT(faults, 10);
  for (std::size_t i = 1; i < taken.size(); ++i) EXPECT_LT(taken[i - 1], taken[i]);
  EXPECT_EQ(taken.back(), 1'000'000 + kVersions);
}

TEST(MonitorControl, FollowedFromTheStartAndWithinASecond) {
  const fs::path out = fs::temp_directory_path() / ("trainmon_ctl_" + std::to_string(::getpid()));
  fs::remove_all(out);
  fs::create_directories(out);
  write_atomically(control_path(out), R"({"format": 1, "number": 4, "on": false})");
  Config config;
  config.out = out.string();
  config.flush_seconds = 3600.0;  // what is asked for does not wait for a flush
  {
    Monitor monitor(config, Identity{});
    EXPECT_EQ(monitor.control_versions(), 1);
    ASSERT_TRUE(monitor.control());
    EXPECT_EQ(monitor.control()->control.number, 4);

    const auto until = [&](auto&& holds) {
      for (int i = 0; i < 500 && !holds(); ++i) std::this_thread::sleep_for(10ms);
      return holds();
    };
    std::ofstream(control_path(out)) << R"({"format": 1, "numb)";
    EXPECT_TRUE(until([&] { return !read_controls(out).at(0).file_fault.empty(); }));
    EXPECT_EQ(monitor.control_versions(), 1);
    EXPECT_EQ(monitor.control()->control.number, 4) << "the last good one stays";

    write_atomically(control_path(out), R"({"format": 1, "number": 5, "set": {"every": 3}})");
    EXPECT_TRUE(until([&] { return monitor.control_versions() == 2; }));
    EXPECT_EQ(monitor.control()->config.every, 3);
    EXPECT_TRUE(until([&] { return read_controls(out).at(0).file_fault.empty(); }));

    monitor.add_optimizer(0);
    std::vector<bool> recording;
    for (int step = 0; step < 6; ++step) {
      if (step == 2) monitor.follow(monitor.control()->config);
      recording.push_back(monitor.recording(0));
      monitor.begin_attempt(0);
      monitor.end_attempt(0, Fate::taken, 1.0);
    }
    EXPECT_EQ(recording, (std::vector<bool>{true, true, false, true, false, false}));
    EXPECT_FALSE(read_controls(out).at(0).closed);
  }
  EXPECT_TRUE(read_controls(out).at(0).closed);
  fs::remove_all(out);
}

}  // namespace
}  // namespace trainmon
