// What stands at which address: the page of a run and its state, or the list of the runs in a
// directory. Two threads read runs that somebody looks at: one the newest steps, one what a page
// shows. Whoever asks never waits.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "report/report.h"
#include "serve/answer.h"
#include "serve/followed_run.h"
#include "serve/pace.h"
#include "serve/small_pages.h"

namespace trainmon::serve {

class Site {
 public:
  // `directory` is a run or holds runs, now or later. `max_bytes` is for one page; the pages of at
  // most eight runs are kept. Throws std::runtime_error where it is no directory.
  Site(std::filesystem::path directory, std::int64_t max_bytes);
  ~Site();  // waits until both threads have ended
  Site(const Site&) = delete;
  Site& operator=(const Site&) = delete;

  // Behind the token: "/" and "/state" of a run, "/NAME/" and "/NAME/state" in a directory of runs.
  // Only names that were found there are known. A query chooses the language of a page without a
  // script. Any thread.
  Answer answer(const Asked& asked);

 private:
  using Clock = Pace::Clock;
  // What is said of a run, by name; "" is the directory itself.
  struct Shown {
    Seen seen;
    std::shared_ptr<const std::string> page, state;  // nullptr: none yet
    std::string digest, state_tag;
    std::string error;                   // why there is no newer page
    std::optional<std::string> made_of;  // the signature that the page was made of
    Clock::time_point made, wanted;

    void say_state();
  };

  // Under the lock.
  Answer of_run(const std::string& name, std::string_view part, const Asked& asked);
  SmallPage small_page(const Asked& asked) const;
  void ask();
  Shown& shown_of(const std::string& name);
  std::vector<std::string> watched() const;
  std::optional<std::string> next_page() const;
  std::filesystem::path path_of(const std::string& name) const;
  // Of the first thread; without the lock, which they take to publish.
  void look_all();
  void look_at_directory();
  void look_at(const std::string& name);
  // Of the second thread, in the same way.
  void make_pages();
  void make_page(const std::string& name, const std::string& signature);

  const std::filesystem::path directory_;
  const std::int64_t max_bytes_;
  const std::string nonce_;  // of the small pages

  std::mutex mutex_;  // of all until the next comment
  std::condition_variable changed_;
  std::atomic<bool> is_ending_ = false;  // read without the lock, too
  bool is_asked_ = false;                // for something that nobody looked at before
  bool is_a_run_ = false;                // the directory is or was one itself
  Clock::time_point list_wanted_;
  std::set<std::string> names_;  // of the runs in it
  std::vector<ListedRun> list_;
  std::map<std::string, Shown> shown_;

  // Of one thread each.
  std::map<std::string, std::unique_ptr<FollowedRun>> followed_;
  Pace looks_;
  std::map<std::string, std::unique_ptr<GrowingReport>> growing_;
  Pace pages_;
  std::thread looking_, making_;
};

}  // namespace trainmon::serve
