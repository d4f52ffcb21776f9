#include "base/made_ahead.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <memory>
#include <numeric>
#include <random>
#include <stdexcept>
#include <vector>

namespace trainmon {
namespace {

TEST(MadeAhead, TheOrderIsThatOfOneThread) {
  std::mt19937 random(3);
  for (int round = 0; round < 60; ++round) {
    const std::size_t count = random() % 40;
    const unsigned threads = static_cast<unsigned>(random() % 9);  // 0 is one
    std::atomic<int> made{0};
    std::atomic<std::size_t> taken{0};
    // A result that can only be moved, from calls that end in any order.
    MadeAhead<std::unique_ptr<std::size_t>> ahead(count, threads, [&](std::size_t i) {
      EXPECT_LE(i, taken + 1 + std::max(threads, 1u)) << "too many results wait";
      std::this_thread::sleep_for(std::chrono::microseconds(i * 7919 % 300));
      ++made;
      return std::make_unique<std::size_t>(i);
    });
    std::vector<std::size_t> found, expected(count);
    std::iota(expected.begin(), expected.end(), std::size_t{0});
    while (const auto one = ahead.next()) {
      ++taken;
      found.push_back(**one);
    }
    EXPECT_EQ(found, expected);
    EXPECT_EQ(made, static_cast<int>(count));
    EXPECT_FALSE(ahead.next()) << "the end stays the end";
  }
}

TEST(MadeAhead, AFailureComesAtItsPlace) {
  for (const unsigned threads : {1u, 2u, 3u, 8u}) {
    MadeAhead<std::size_t> ahead(20, threads, [](std::size_t i) {
      if (i == 7 || i == 9) throw std::runtime_error(std::to_string(i));
      return i;
    });
    for (std::size_t i = 0; i < 7; ++i) EXPECT_EQ(ahead.next(), i);
    try {
      ahead.next();
      ADD_FAILURE() << "nothing was thrown";
    } catch (const std::runtime_error& error) {
      EXPECT_STREQ(error.what(), "7");
    }
  }
}

TEST(MadeAhead, WhatIsNotTakenIsNotMade) {
  for (const unsigned threads : {1u, 2u, 8u}) {
    std::atomic<unsigned> made{0};
    {
      MadeAhead<int> ahead(1000, threads, [&](std::size_t) { return static_cast<int>(++made); });
      ahead.next();
    }
    EXPECT_LE(made, threads + 1);
  }
}

}  // namespace
}  // namespace trainmon
