// Counts lines second by second; colour is the log's affair.
#include "rules/alert_console.h"

#include <utility>

#include "base/log.h"
#include "base/text.h"

namespace trainmon {

AlertText plain_alert_text(int rank) {
  return [rank](const Alert& alert, const Series&) {
    std::string text = "rank " + std::to_string(rank) + ": " + alert.rule + ": " + alert.message;
    if (alert.step >= 0) {
      text += (alert.count > 1 ? ", first at step " : ", step ") + std::to_string(alert.step);
    }
    if (alert.count > 1) text += " (" + grouped(alert.count) + " times)";
    return text;
  };
}

AlertConsole::AlertConsole(AlertText text, int lines_per_second)
    : text_(std::move(text)), lines_per_second_(lines_per_second) {}

void AlertConsole::tell(const Alert& alert, const Series& series, Clock::time_point now) noexcept {
  catch_up(false, now);
  if (now - second_ >= std::chrono::seconds(1)) {
    second_ = now;
    lines_ = 0;
  }
  if (lines_ >= lines_per_second_) {
    ++held_back_;
    return;
  }
  ++lines_;
  try {
    log_warning(text_(alert, series));
  } catch (...) {  // out of memory: the alert itself is in the data
  }
}

void AlertConsole::catch_up(bool all, Clock::time_point now) noexcept {
  if (held_back_ == 0 || (!all && now - second_ < std::chrono::seconds(1))) return;
  try {
    log_warning("... and " + grouped(held_back_) + " more alerts");
    held_back_ = 0;
  } catch (...) {
  }
}

}  // namespace trainmon
