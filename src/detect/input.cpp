// Batches are new as long as none of the last calls had them. Where that was so, a batch that is
// given again and again, or to several ranks, is no chance. Whoever repeats batches from the start
// means it, and so may epochs in one order: that is noticed once. Whoever does it equally often
// again and again means it, too, and data may repeat themselves.
#include "detect/input.h"

#include <algorithm>
#include <cmath>
#include <string_view>
#include <tuple>
#include <utility>

#include "base/text.h"

namespace trainmon::detect {
namespace {

constexpr std::int64_t kNew = 8;      // so many calls in a row had a batch that was new
constexpr std::int64_t kCertain = 3;  // so many in a row do what chance may do once
constexpr std::int64_t kRegular = 3;  // so many runs of one length are meant
// Of the entropy: records that are kept, the fewest that tell, and how far one may be from their
// median. The distance is in spreads, of which the least is kLeastSpread bits.
constexpr std::size_t kRecords = 48, kFewestRecords = 16;
constexpr double kFar = 7.0, kLeastSpread = 0.05;
// Two values that are equally frequent have one bit: flags and masks, not ids.
constexpr double kOfFlags = 1.0;

constexpr std::string_view kAgain = "the model is given the batch of the call before again";
constexpr std::string_view kEachCall = ", and then in each call";
constexpr std::string_view kLonger = ", more often than at other times";

double median(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::ranges::nth_element(values, middle);
  return *middle;
}

}  // namespace

// Gathers what ranks have in common.
class Inputs::Report {
 public:
  Report(const Window& window, Findings& found) : window_(window), found_(found) {}

  void add(std::int64_t step, std::vector<std::int32_t> ranks, bool certain, std::string text,
           double value = 0.0, double bound = 0.0) {
    Finding& one = all_[{step, certain, text}];
    const bool is_new = one.text.empty();
    if (is_new) one = window_.finding(Check::input, Stage::input, ranks.front());
    one.step = step;
    one.certain = certain;
    one.text = std::move(text);
    one.value = value;
    one.bound = bound;
    one.evidence = bound == 0.0 ? Evidence::fingerprints : Evidence::statistics;
    one.ranks.insert(one.ranks.end(), ranks.begin(), ranks.end());
    std::ranges::sort(one.ranks);
    one.ranks.erase(std::ranges::unique(one.ranks).begin(), one.ranks.end());
  }
  // What add() was once told of this rank and step is not certain.
  void doubt(std::int64_t step, std::int32_t rank, const std::string& was, std::string text) {
    Finding one = window_.finding(Check::input, Stage::input, rank);
    one.step = step;
    one.text = was;
    found_.doubt(one, rank, std::move(text));
  }
  void write() {
    for (auto& [place, one] : all_) found_.add(std::move(one));
  }

 private:
  const Window& window_;
  Findings& found_;
  std::map<std::tuple<std::int64_t, bool, std::string>, Finding> all_;
};

void Inputs::check(const Window& window, Findings& found) {
  const std::vector<InputCall> calls = calls_of(window.now.inputs());
  if (calls.empty()) return;
  // Epochs in one order come to the same place in steps that lie apart: as far as before, or not.
  const std::int64_t apart = window.now.step - step_;
  const bool is_farther = apart > 1 && apart != apart_;
  // Where a later start went back, its steps come before those of an older one.
  if (window.now.restart > restart_) begin_start();
  if (window.now.restart < restart_) earlier_.clear();
  if (window.now.restart != restart_ || is_farther) forget();
  restart_ = window.now.restart;
  step_ = window.now.step;
  apart_ = apart;
  Report report(window, found);
  for (const Input& one : window.now.inputs()) {
    if (one.is_finite || !not_finite_.insert(one.element).second) continue;
    report.add(step_, {one.rank}, false, printable(one.element) + " has a NaN or an infinity");
  }
  forget_edited(window, calls);
  std::vector<bool> are_beside_new;
  for (const InputCall& call : calls) are_beside_new.push_back(has_new_beside(call, calls));
  for (std::size_t i = 0; i < calls.size(); ++i) {
    const InputCall& call = calls[i];
    check_entropy(window, call, report);
    if (!call.bits) continue;
    found.checked(Check::input, Evidence::fingerprints);
    check_begins_anew(window.now.step, call, report);
    check_again(window.now.step, call, are_beside_new[i], report);
  }
  check_ranks(window.now.step, calls, report);
  report.write();
}

void Inputs::forget(std::optional<std::int32_t> rank) {
  const auto is_meant = [&](const Place& place) { return place.rank == rank.value_or(place.rank); };
  for (auto& [place, stream] : streams_) {
    if (is_meant(place)) stream = Stream{.is_noticed = stream.is_noticed};
  }
  for (auto& [place, shared] : shared_) {
    if (is_meant(place)) shared = Shared{.is_noticed = shared.is_noticed};
  }
}

void Inputs::begin_start() {
  earlier_.clear();
  for (auto& [place, stream] : streams_) {
    if (stream.repeated == 0 && stream.given.calls() >= kNew) {
      earlier_[place].given = std::move(stream.given);
    }
  }
}

// A start that goes on is given what comes next. One that does not find its place in the data is
// given the first batches again, by the same seed or in the same order.
void Inputs::check_begins_anew(std::int64_t step, const InputCall& call, Report& report) {
  const auto at = earlier_.find(place_of(call));
  if (at == earlier_.end()) return;
  Earlier& earlier = at->second;
  const std::optional<Given> known = earlier.given.find(*call.bits);
  if (known && known->step != step) {
    if (earlier.again++ == 0) {
      earlier.from = known->step;
      earlier.since = step;
    }
    if (earlier.again < kCertain) return;
    report.add(earlier.since, {call.rank}, false,
               "the model is given the batches of the start before again, from that of step " +
                   std::to_string(earlier.from) + " on: the steps go on, and the data do not");
  }
  earlier_.erase(at);
}

// Somebody who loads a state or edits weights may go back in the data, too.
void Inputs::forget_edited(const Window& window, const std::vector<InputCall>& calls) {
  for (const InputCall& call : calls) {
    std::uint64_t& last = last_seq_[call.rank];
    Observation from, to;
    from.rank = to.rank = call.rank;
    from.seq = last;
    to.seq = call.seq;
    const bool is_edited = last != 0 && window.has_edit(from, to);
    last = std::max(last, call.seq);
    if (is_edited) forget(call.rank);
  }
}

bool Inputs::has_new_beside(const InputCall& call, const std::vector<InputCall>& calls) const {
  return std::ranges::any_of(calls, [&](const InputCall& other) {
    const bool is_same = other.call == call.call && other.chunk == call.chunk;
    if (other.rank != call.rank || is_same || !other.bits) return false;
    const auto stream = streams_.find(place_of(other));
    return stream == streams_.end() || !stream->second.given.find(*other.bits);
  });
}

void Inputs::check_again(std::int64_t step, const InputCall& call, bool is_beside_new,
                         Report& report) {
  Stream& stream = streams_[place_of(call)];
  const std::int64_t number = stream.given.calls();
  const std::optional<Given> before = stream.given.note(*call.bits, step);
  const std::int64_t ago = before ? number - before->number : 0;
  const auto notice = [&](std::int64_t since, std::string_view text) {
    if (!std::exchange(stream.is_noticed, true)) {
      report.add(since, {call.rank}, false, std::string(text));
    }
  };
  if (ago != 1) {
    const bool was_chance = stream.run.follows_new && !stream.run.is_said;
    if (stream.run.length > 0 && was_chance) notice(stream.run.step, kAgain);
    end_run(stream, call.rank, report);
  }
  if (ago > 0 && stream.repeated++ == 0) {
    stream.first = {number, step};
    stream.first_text = ago == 1 ? std::string(kAgain)
                                 : "the model is given the batch of step " +
                                       std::to_string(before->step) +
                                       " again, as epochs in one order do";
  }
  if (ago == 1) {
    const bool follows_new = number >= kNew && stream.closest > kNew;
    if (stream.run.length++ == 0) stream.run = {1, step, follows_new};
    stream.run.is_beside_new |= is_beside_new;
    // A closure may be called again and again in one step.
    stream.run.is_over_steps |= before->step != step;
    // A fixed batch beside new ones is no loader that is stuck.
    const bool is_certain = !stream.run.is_beside_new;
    if (stream.run.follows_new && stream.run.length >= kCertain && stream.run.is_over_steps &&
        !std::exchange(stream.run.is_said, true)) {
      report.add(stream.run.step, {call.rank}, is_certain,
                 std::string(kAgain) + std::string(kEachCall));
    }
    Regular& regular = stream.regular;
    if (stream.run.length == regular.length + 1) regular.beyond = step;
    if (regular.times >= kRegular && regular.is_even &&
        stream.run.length >= regular.length + kCertain && stream.run.is_over_steps &&
        !std::exchange(regular.is_said, true)) {
      regular.said = regular.beyond;
      report.add(regular.said, {call.rank}, is_certain, std::string(kAgain) + std::string(kLonger));
    }
  }
  // What is repeated from the start on is told when it has gone on for a while.
  const bool is_early = stream.first.number < kNew;
  if (is_early && stream.repeated == kNew) notice(stream.first.step, stream.first_text);
  if (!is_early && ago > 1) notice(stream.first.step, stream.first_text);
  if (ago > 0) stream.closest = std::min(stream.closest, ago);
}

// Runs that end, of which the first was told, are how this training is done, or its data: a loader
// that is stuck stays so.
void Inputs::end_run(Stream& stream, std::int32_t rank, Report& report) {
  Regular& regular = stream.regular;
  const Run run = std::exchange(stream.run, {});
  if (regular.is_said && run.length >= regular.length + kCertain && ++regular.longer == 2) {
    const std::string was = std::string(kAgain) + std::string(kLonger);
    report.doubt(regular.said, rank, was, was + ", and again later");
  }
  if (run.length < kCertain || regular.times >= kRegular) return;
  if (run.follows_new) regular = {.length = run.length, .step = run.step};
  if (regular.length == 0) return;
  regular.is_even = regular.is_even && run.length == regular.length;
  if (++regular.times < kRegular) return;
  const std::string often =
      regular.is_even ? std::to_string(run.length) + " times in a row" : "several times in a row";
  report.doubt(regular.step, rank, std::string(kAgain) + std::string(kEachCall),
               std::string(kAgain) + ", " + often + ", as in later steps");
}

void Inputs::check_ranks(std::int64_t step, const std::vector<InputCall>& calls, Report& report) {
  // Ranks that are given parts of one batch, or that nothing relates: by place in the step, then by
  // what they are given. Of the latter some have one batch for all from the start, and mean it.
  std::map<std::tuple<std::int32_t, std::int32_t, std::int32_t, std::uint64_t>,
           std::vector<const InputCall*>>
      equal;
  for (const InputCall& call : calls) {
    if (!call.bits || !(call.is_of_whole_batch || call.is_unrelated)) continue;
    equal[{call.chunk, call.call, call.accum, *call.bits}].push_back(&call);
  }
  for (const auto& [place, same] : equal) {
    std::vector<std::int32_t> ranks;
    for (const InputCall* call : same) ranks.push_back(call->rank);
    const bool is_shared = same.size() > 1;
    for (const InputCall* call : same) {
      Shared& rank = shared_[place_of(*call)];
      const auto notice = [&](std::int64_t since, const std::vector<std::int32_t>& of) {
        if (call->is_of_whole_batch && !std::exchange(rank.is_noticed, true)) {
          report.add(since, of, false, "ranks are given the same batch");
        }
      };
      if (is_shared) {
        if (rank.run.length++ == 0) rank.run = {1, step, rank.alone >= kNew};
        if (!rank.run.follows_new && rank.run.length == kNew) notice(rank.run.step, ranks);
        if (rank.run.follows_new && rank.run.length == kCertain) {
          report.add(rank.run.step, ranks, call->is_of_whole_batch,
                     "ranks that had batches of their own are given the same batch, call by call");
        }
        continue;
      }
      const bool was_shared = rank.run.length > 0;
      if (was_shared && rank.run.follows_new && rank.run.length < kCertain) {
        notice(rank.run.step, {call->rank});
      }
      // Those that share batches now and then have few.
      rank.alone = was_shared || rank.alone < 0 ? -1 : rank.alone + 1;
      rank.run = {};
    }
  }
}

void Inputs::check_entropy(const Window& window, const InputCall& call, Report& report) {
  for (const auto& [element, bits] : call.entropies) {
    Entropies& known = entropies_[{place_of(call), element}];
    if (known.last.size() >= kFewestRecords && !known.is_noticed) {
      const double middle = median({known.last.begin(), known.last.end()});
      std::vector<double> off;
      for (const double one : known.last) off.push_back(std::abs(one - middle));
      // Most of few ids have one entropy, and some have another: their median is 0.
      double mean = 0.0;
      for (const double one : off) mean += one / static_cast<double>(off.size());
      const double spread = std::max(1.4826 * median(std::move(off)), 1.2533 * mean);
      // Of 2^b different ids two that are equal take 2/2^b bits. Three such pairs may be chance.
      const double bound = kFar * (spread + std::max(kLeastSpread, std::exp2(-middle)));
      if (middle > kOfFlags && std::abs(bits - middle) > bound) {
        known.is_noticed = true;
        report.add(window.now.step, {call.rank}, false,
                   "the entropy of the ids in " + printable(element) + " is " +
                       number_text(bits, 3) + " bits, that of the calls before " +
                       number_text(middle, 3),
                   std::abs(bits - middle), bound);
      }
    }
    known.last.push_back(bits);
    if (known.last.size() > kRecords) known.last.pop_front();
  }
}

}  // namespace trainmon::detect
