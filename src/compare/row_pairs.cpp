// Rows of one place stand side by side after sorting, those of A before those of B.
#include "compare/row_pairs.h"

#include <algorithm>
#include <set>
#include <span>
#include <tuple>

#include "model/first_bad.h"

namespace trainmon {
namespace {

// With a copy of what is sorted by, so that sorting does not jump from row to row.
struct Entry {
  std::uint32_t tensor = 0;  // of both runs
  bool is_b = false;
  std::int32_t attempt = 0;
  std::int32_t of_step = 0;  // ComparedRow::place
  std::int32_t call = 0;
  std::int64_t step = 0;
  const ComparedRow* row = nullptr;

  Entry(std::uint32_t tensor_number, bool of_b, const ComparedRow& of)
      : tensor(tensor_number),
        is_b(of_b),
        attempt(of.attempt),
        of_step(of.place),
        call(of.call),
        step(of.step),
        row(&of) {}
  auto place() const { return std::tie(tensor, step, attempt, of_step, call); }
};

bool operator<(const Entry& x, const Entry& y) {
  if (const auto order = x.place() <=> y.place(); order != 0) return order < 0;
  return std::tie(x.is_b, x.row->rank, x.row->seq) < std::tie(y.is_b, y.row->rank, y.row->seq);
}

using RankRows = std::map<std::int32_t, std::vector<const ComparedRow*>>;

class Pairing {
 public:
  Pairing(ComparedRun& a, ComparedRun& b) : a_(a), b_(b) {
    add(a, false);
    add(b, true);
    std::sort(entries_.begin(), entries_.end());
  }

  std::vector<RowPair> run() {
    for (auto first = entries_.begin(); first != entries_.end();) {
      const auto last = std::find_if(first, entries_.end(), [&](const Entry& entry) {
        return entry.place() != first->place();
      });
      match({first, last});
      first = last;
    }
    list_lacks();
    sort_as_executed();
    return std::move(pairs_);
  }

 private:
  void add(const ComparedRun& run, bool is_b) {
    std::vector<std::uint32_t> numbers;
    for (const ComparedTensor& tensor : run.tensors) {
      const auto next = static_cast<std::uint32_t>(numbers_.size());
      numbers.push_back(numbers_.try_emplace(tensor.match, next).first->second);
    }
    entries_.reserve(a_.rows.size() + b_.rows.size());
    for (const ComparedRow& row : run.rows) {
      entries_.emplace_back(numbers[row.tensor], is_b, row);
    }
  }

  // A row of each run, of one rank or merged: nearly every place.
  bool match_two(std::span<const Entry> group) {
    if (group.size() != 2 || group[0].is_b || !group[1].is_b) return false;
    const ComparedRow &a = *group[0].row, &b = *group[1].row;
    if (a.rank != b.rank && a.rank >= 0 && b.rank >= 0) return false;
    pairs_.push_back({&a, &b});
    return true;
  }

  void match(std::span<const Entry> group) {
    if (match_two(group)) return;
    RankRows of_a, of_b;
    for (const Entry& entry : group) {
      (entry.is_b ? of_b : of_a)[entry.row->rank].push_back(entry.row);
    }
    std::size_t used_a = 0, used_b = 0;
    const auto both = [&](const auto& rows_a, const auto& rows_b) {
      const std::size_t count = std::min(rows_a.size(), rows_b.size());
      for (std::size_t i = 0; i < count; ++i) pairs_.push_back({rows_a[i], rows_b[i]});
      return count;
    };
    std::size_t merged_a = 0, merged_b = 0;  // matched by several ranks, used once
    for (const auto& [rank, rows] : of_a) {
      if (const auto same = of_b.find(rank); same != of_b.end()) {
        const std::size_t count = both(rows, same->second);
        used_a += count;
        used_b += count;
      } else if (const auto all = of_b.find(-1); all != of_b.end()) {
        const std::size_t count = both(rows, all->second);
        used_a += count;
        merged_b = std::max(merged_b, of_a.contains(-1) ? 0 : count);
      }
    }
    for (const auto& [rank, rows] : of_b) {
      const auto all = of_a.find(-1);
      if (of_a.contains(rank) || all == of_a.end()) continue;
      const std::size_t count = both(all->second, rows);
      used_b += count;
      merged_a = std::max(merged_a, of_b.contains(-1) ? 0 : count);
    }
    used_a += merged_a;
    used_b += merged_b;
    for (const auto& [side, used, rows] :
         {std::tuple(&a_, used_a, &of_a), std::tuple(&b_, used_b, &of_b)}) {
      std::size_t all = 0;
      for (const auto& [rank, list] : *rows) all += list.size();
      if (all <= used) continue;
      side->side.unmatched += static_cast<std::int64_t>(all - used);
      Lack& lack = (side == &a_ ? lacks_a_ : lacks_b_)[rows->begin()->second[0]->tensor];
      const ComparedSide& other = (side == &a_ ? b_ : a_).side;
      const std::int64_t step = group.front().row->step;
      if (step < other.first_step || step > other.last_step) continue;
      if (lack.rows == 0) lack.first_step = step;
      lack.rows += static_cast<std::int64_t>(all - used);
    }
  }

  // Reduced gradients are read after the backward, in the order of the model. Here: where the
  // unreduced gradient of the same parameter came in the backward, if A has it, else the reverse.
  std::vector<std::uint64_t> backward_seqs() const {
    constexpr std::uint64_t kUnknown = std::uint64_t{1} << 62;
    std::vector<std::uint64_t> first(a_.tensors.size(), kUnknown);
    for (const ComparedRow& row : a_.rows) first[row.tensor] = std::min(first[row.tensor], row.seq);
    std::map<std::string, std::uint64_t> by_name;
    const auto name_of = [](const ComparedTensor& tensor) {
      return std::to_string(tensor.chunk) + ":" + tensor.name;
    };
    for (std::size_t i = 0; i < first.size(); ++i) {
      if (a_.tensors[i].kind == kind::kGradUnreduced) by_name[name_of(a_.tensors[i])] = first[i];
    }
    std::vector<std::uint64_t> seqs;
    for (const ComparedTensor& tensor : a_.tensors) {
      const auto known = by_name.find(name_of(tensor));
      seqs.push_back(known == by_name.end() ? kUnknown : known->second);
    }
    return seqs;
  }

  // Rows within the steps of the other run, of tensors that it has.
  void list_lacks() {
    for (const auto& [run, other, lacks] :
         {std::tuple(&a_, &b_, &lacks_a_), std::tuple(&b_, &a_, &lacks_b_)}) {
      std::set<std::string_view> there;
      for (const ComparedTensor& tensor : other->tensors) there.insert(tensor.match);
      run->side.rows_only_here.clear();
      for (const auto& [number, lack] : *lacks) {
        const ComparedTensor& tensor = run->tensors[number];
        if (lack.rows == 0 || !there.contains(tensor.match)) continue;
        run->side.rows_only_here.push_back(
            tensor_text(tensor) + ": step " + std::to_string(lack.first_step) +
            (lack.rows > 1 ? " and later, " + std::to_string(lack.rows) + " rows" : ""));
      }
    }
  }

  void sort_as_executed() {
    constexpr int kReduced = 4;
    std::vector<int> moments;
    for (const ComparedTensor& tensor : a_.tensors) moments.push_back(moment_of(tensor.kind));
    const std::vector<std::uint64_t> backward = backward_seqs();
    const auto order = [&](const RowPair& pair) {
      const int moment = moments[pair.a->tensor];
      const std::uint64_t seq = pair.a->seq;
      return std::tuple(pair.a->step, pair.a->attempt, moment == 0 ? -1 : pair.a->accum, moment,
                        moment == kReduced ? backward[pair.a->tensor] : 0,
                        moment == kReduced ? ~seq : seq, pair.rank());
    };
    std::stable_sort(pairs_.begin(), pairs_.end(),
                     [&](const RowPair& x, const RowPair& y) { return order(x) < order(y); });
  }

  struct Lack {
    std::int64_t first_step = 0;
    std::int64_t rows = 0;
  };
  std::map<std::uint32_t, Lack> lacks_a_, lacks_b_;  // by tensor of the run that has the rows
  ComparedRun& a_;
  ComparedRun& b_;
  std::map<std::string, std::uint32_t> numbers_;
  std::vector<Entry> entries_;
  std::vector<RowPair> pairs_;
};

// Tensors of `run` that `other` lacks.
void list_only_here(ComparedRun& run, const ComparedRun& other) {
  std::map<std::string_view, int> there;
  for (const ComparedTensor& tensor : other.tensors) there[tensor.match] = 1;
  run.side.only_here.clear();
  for (const ComparedTensor& tensor : run.tensors) {
    if (there.contains(tensor.match)) continue;
    run.side.only_here.push_back(tensor_text(tensor));
  }
}

// msprobe's monitor leaves out the beginning of some names: encoder.layers.0 is its layers.0. A
// tensor that only one run has goes with the only one of the other whose name ends with its own.
void match_endings(const ComparedRun& a, ComparedRun& b) {
  if ((a.side.format == "msprobe_csv") == (b.side.format == "msprobe_csv")) return;
  std::set<std::string_view> of_a, of_b;
  for (const ComparedTensor& tensor : a.tensors) of_a.insert(tensor.match);
  for (const ComparedTensor& tensor : b.tensors) of_b.insert(tensor.match);
  const auto ends_with = [](const std::string& x, const std::string& y) {
    const std::size_t name_x = x.rfind(kMatchSeparator) + 1, name_y = y.rfind(kMatchSeparator) + 1;
    const std::string_view longer = std::string_view(x).substr(name_x);
    const std::string_view shorter = std::string_view(y).substr(name_y);
    return x.substr(0, name_x) == y.substr(0, name_y) && longer.size() > shorter.size() + 1 &&
           longer.ends_with(shorter) && longer[longer.size() - shorter.size() - 1] == '.';
  };
  std::map<std::string, std::vector<ComparedTensor*>> candidates;  // by the name in A
  for (ComparedTensor& tensor : b.tensors) {
    if (of_a.contains(tensor.match)) continue;
    std::vector<const std::string*> found;
    for (const ComparedTensor& other : a.tensors) {
      if (of_b.contains(other.match)) continue;
      if (ends_with(other.match, tensor.match) || ends_with(tensor.match, other.match)) {
        found.push_back(&other.match);
      }
    }
    if (found.size() == 1) candidates[*found[0]].push_back(&tensor);
  }
  for (auto& [match, tensors] : candidates) {
    if (tensors.size() == 1) tensors[0]->match = match;
  }
}

}  // namespace

std::vector<RowPair> pair_rows(ComparedRun& a, ComparedRun& b) {
  match_endings(a, b);
  a.side.unmatched = b.side.unmatched = 0;
  list_only_here(a, b);
  list_only_here(b, a);
  return Pairing(a, b).run();
}

}  // namespace trainmon
