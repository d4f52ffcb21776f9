#include "serve/site.h"

#include <sys/resource.h>

#include <algorithm>
#include <stdexcept>

#include "base/md5.h"
#include "base/signals_blocked.h"
#include "base/text.h"
#include "read/run_layout.h"
#include "serve/gate.h"

namespace trainmon::serve {
namespace {

using namespace std::chrono_literals;

constexpr std::size_t kMostShown = 8;  // runs whose pages are kept
constexpr auto kWatched = 10s;         // so long after it asked, a page is taken to be open
constexpr auto kKept = 60s;            // so long a run that nobody looks at can go on at once
constexpr auto kTick = 250ms;
// Shares of one core. Together they stay below 5 %, which a training may not notice.
constexpr double kLooks = 0.01;
constexpr double kPages = 0.035;

Answer text_answer(unsigned status, std::string text) {
  Answer answer;
  answer.status = status;
  answer.body = std::make_shared<const std::string>(std::move(text));
  return answer;
}

Answer html_answer(std::shared_ptr<const std::string> body, const std::string& nonce) {
  Answer answer;
  answer.type = "text/html; charset=utf-8";
  answer.nonce = nonce;
  answer.body = std::move(body);
  return answer;
}

Answer moved(std::string location) {
  Answer answer = text_answer(308, "");
  answer.location = std::move(location);
  return answer;
}

Answer not_found() {
  return text_answer(404, "There is nothing here.\n");
}

// Or 304 where the one who asks has it.
Answer tagged(Answer answer, const std::string& tag, std::string_view if_none_match) {
  answer.tag = tag;
  if (if_none_match.find('"' + tag + '"') != std::string_view::npos) {
    answer.status = 304;
    answer.body.reset();
  }
  return answer;
}

}  // namespace

Site::Site(std::filesystem::path directory, std::int64_t max_bytes)
    : directory_(std::move(directory)),
      max_bytes_(max_bytes),
      nonce_(random_token()),
      looks_(kLooks, 500ms, CLOCK_THREAD_CPUTIME_ID),
      pages_(kPages, 500ms, CLOCK_PROCESS_CPUTIME_ID) {
  if (!std::filesystem::is_directory(directory_)) {
    throw std::runtime_error("there is no directory " + directory_.string() +
                             "; a run, or a directory that holds runs or will, can be served");
  }
  look_at_directory();
  const SignalsBlocked blocked;
  const auto yielding = [this](void (Site::*work)()) {
    return std::thread([this, work] {
      ::setpriority(PRIO_PROCESS, 0, 5);  // of this thread: a training goes first
      (this->*work)();
    });
  };
  looking_ = yielding(&Site::look_all);
  making_ = yielding(&Site::make_pages);
}

Site::~Site() {
  {
    const std::lock_guard lock(mutex_);
    is_ending_ = true;
  }
  changed_.notify_all();
  looking_.join();
  making_.join();
}

SmallPage Site::small_page(const Asked& asked) const {
  const std::string_view query = Gate::query(asked.target);
  return {language_of(query, asked.accept_language), query == "zh" || query == "en", nonce_};
}

Answer Site::answer(const Asked& asked) {
  std::string_view path = Gate::behind_token(asked.target);
  if (path.empty()) return moved("/");
  path.remove_prefix(1);
  const std::lock_guard lock(mutex_);
  if (is_a_run_) return of_run("", path, asked);
  if (path.empty()) {
    if (Clock::now() - list_wanted_ > kWatched) ask();
    list_wanted_ = Clock::now();
    return html_answer(
        std::make_shared<const std::string>(list_page(directory_, list_, small_page(asked))),
        nonce_);
  }
  const std::size_t slash = path.find('/');
  const auto name = percent_decoded(path.substr(0, slash));
  if (!name || name->empty() || (!names_.contains(*name) && !shown_.contains(*name))) {
    list_wanted_ = Clock::now();  // it may have begun since the last look
    ask();
    return not_found();
  }
  if (slash == std::string_view::npos) return moved("/" + std::string(path) + "/");
  return of_run(*name, path.substr(slash + 1), asked);
}

Answer Site::of_run(const std::string& name, std::string_view part, const Asked& asked) {
  if (!part.empty() && part != "state") return not_found();
  Shown& shown = shown_of(name);
  if (Clock::now() - shown.wanted > kWatched) ask();
  shown.wanted = Clock::now();
  if (part == "state") {
    if (!shown.state) return text_answer(503, "The run is being read.\n");
    Answer answer;
    answer.type = "application/json";
    answer.body = shown.state;
    return tagged(std::move(answer), shown.state_tag, asked.if_none_match);
  }
  if (shown.page) {
    return tagged(html_answer(shown.page, shown.digest), shown.digest, asked.if_none_match);
  }
  const std::string title = name.empty() ? directory_.string() : name;
  return html_answer(
      std::make_shared<const std::string>(waiting_page(title, shown.error, small_page(asked))),
      nonce_);
}

void Site::ask() {
  is_asked_ = true;
  changed_.notify_all();
}

Site::Shown& Site::shown_of(const std::string& name) {
  if (!shown_.contains(name) && shown_.size() >= kMostShown) {
    shown_.erase(
        std::ranges::min_element(shown_, {}, [](const auto& one) { return one.second.wanted; }));
  }
  return shown_[name];
}

std::vector<std::string> Site::watched() const {
  std::vector<std::string> names;
  for (const auto& [name, shown] : shown_) {
    if (Clock::now() - shown.wanted <= kWatched) names.push_back(name);
  }
  return names;
}

void Site::look_all() {
  std::unique_lock lock(mutex_);
  while (!is_ending_) {
    is_asked_ = false;
    std::erase_if(followed_, [&](const auto& one) {
      const auto shown = shown_.find(one.first);
      return shown == shown_.end() || Clock::now() - shown->second.wanted > kKept;
    });
    const std::vector<std::string> names = watched();
    const bool is_listed = Clock::now() - list_wanted_ <= kWatched;
    lock.unlock();
    // The first look reads the end of the logs, for which somebody waits; further ones read what
    // is new.
    for (const std::string& name : names) {
      if (!followed_.contains(name)) look_at(name);
    }
    if (looks_.is_due()) {
      looks_.spend([&] {
        if (is_listed) look_at_directory();
        for (const std::string& name : names) look_at(name);
      });
    }
    lock.lock();
    const auto is_woken = [&] { return is_ending_ || is_asked_; };
    if (names.empty() && !is_listed) {
      changed_.wait(lock, is_woken);
    } else {
      changed_.wait_for(lock, kTick, is_woken);
    }
  }
}

void Site::look_at_directory() {
  const bool is_one = is_run(directory_);
  std::vector<ListedRun> runs;
  std::set<std::string> names;
  if (!is_one) {
    for (const std::filesystem::path& path : runs_in(directory_)) {
      ListedRun& one = runs.emplace_back();
      one.name = path.filename().native();
      names.insert(one.name);
      try {
        const Extent extent = extent_of(path);
        one.time_ns = extent.time_ns;
        one.ranks = extent.ranks;
        one.state = state_of(path);
      } catch (const std::exception&) {
        one.state = RunState::deleted;  // meanwhile, or not to be read
      }
    }
  }
  const std::lock_guard lock(mutex_);
  is_a_run_ |= is_one;
  names_ = std::move(names);
  list_ = std::move(runs);
}

void Site::look_at(const std::string& name) {
  std::unique_ptr<FollowedRun>& run = followed_[name];
  if (!run) run = std::make_unique<FollowedRun>(path_of(name));
  const Seen& seen = run->look();
  const std::lock_guard lock(mutex_);
  const auto shown = shown_.find(name);
  if (shown == shown_.end()) return;
  shown->second.seen = seen;
  shown->second.say_state();
  changed_.notify_all();
}

// The one whose page is oldest. One without a page goes first, and at once: somebody waits for it.
std::optional<std::string> Site::next_page() const {
  const std::pair<const std::string, Shown>* next = nullptr;
  for (const auto& one : shown_) {
    const Shown& shown = one.second;
    const bool is_new = shown.state && shown.made_of != shown.seen.signature;
    if (!is_new || Clock::now() - shown.wanted > kWatched) continue;
    if (shown.made_of && !pages_.is_due()) continue;
    if (!next || shown.made < next->second.made) next = &one;
  }
  return next ? std::optional(next->first) : std::nullopt;
}

void Site::make_pages() {
  std::unique_lock lock(mutex_);
  while (!is_ending_) {
    std::erase_if(growing_, [&](const auto& one) {
      const auto shown = shown_.find(one.first);
      return shown == shown_.end() || Clock::now() - shown->second.wanted > kKept;
    });
    const std::optional<std::string> name = next_page();
    if (!name) {
      changed_.wait_for(lock, watched().empty() ? (growing_.empty() ? 1h : kKept) : kTick);
      continue;
    }
    const std::string signature = shown_.at(*name).seen.signature;
    lock.unlock();
    make_page(*name, signature);
    lock.lock();
  }
}

void Site::make_page(const std::string& name, const std::string& signature) {
  std::unique_ptr<GrowingReport>& run = growing_[name];
  if (!run) {
    ReportOptions options;
    options.is_live = true;
    options.max_bytes = max_bytes_;
    options.cancelled = [this] { return is_ending_.load(); };
    run = std::make_unique<GrowingReport>(path_of(name), std::move(options));
  }
  Report made;
  std::string error;
  pages_.spend([&] {
    try {
      made = run->make();
    } catch (const std::exception& failed) {  // Cancelled, too: then nobody asks any more
      error = failed.what();
    }
  });
  auto page = std::make_shared<const std::string>(std::move(made.html));
  const std::lock_guard lock(mutex_);
  const auto found = shown_.find(name);
  if (found == shown_.end()) return;
  Shown& shown = found->second;
  shown.made_of = signature;  // what came meanwhile is new
  shown.made = Clock::now();
  shown.error = error;
  if (error.empty()) {
    shown.page = std::move(page);
    shown.digest = made.digest;
  }
  shown.say_state();
}

void Site::Shown::say_state() {
  std::string text = state_json(seen, digest, error);
  if (state && text == *state) return;
  Md5 of_text;
  of_text.add(text);
  state_tag = of_text.finish();
  state = std::make_shared<const std::string>(std::move(text));
}

std::filesystem::path Site::path_of(const std::string& name) const {
  return name.empty() ? directory_ : directory_ / name;
}

}  // namespace trainmon::serve
