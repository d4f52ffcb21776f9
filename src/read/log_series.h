// The series of a log. Many ranks have the same ones: then they are in memory once.
#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "trainmon/record.h"

namespace trainmon {

// A map of which copies share the memory, until one of them is changed.
class LogSeries {
 public:
  using Map = std::map<SeriesId, Series>;

  operator const Map&() const { return *map_; }
  Map::const_iterator begin() const { return map_->cbegin(); }
  Map::const_iterator end() const { return map_->cend(); }
  std::size_t size() const { return map_->size(); }
  bool contains(SeriesId id) const { return map_->contains(id); }
  const Series& at(SeriesId id) const { return map_->at(id); }
  bool operator==(const LogSeries& other) const { return *map_ == *other.map_; }
  // To change it.
  Map& own() {
    if (map_.use_count() != 1) map_ = std::make_shared<Map>(*map_);
    return *map_;
  }

 private:
  std::shared_ptr<Map> map_ = std::make_shared<Map>();
};

// Lets equal ones share their memory. Any thread.
class SharedSeries {
 public:
  void share(LogSeries& one) {
    constexpr std::size_t kMost = 256;  // different ones, that looking for an equal one stays short
    const std::lock_guard lock(mutex_);
    for (const LogSeries& known : known_) {
      if (!(known == one)) continue;
      one = known;
      return;
    }
    if (known_.size() < kMost) known_.push_back(one);
  }

 private:
  std::mutex mutex_;
  std::vector<LogSeries> known_;
};

}  // namespace trainmon
