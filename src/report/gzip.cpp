// Each block has codes of its own (RFC 1951, dynamic Huffman codes). A run is a match at
// distance 1.
#include "report/gzip.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <queue>
#include <span>
#include <utility>
#include <vector>

#include "base/crc32.h"

namespace trainmon::page {
namespace {

constexpr std::size_t kBlock = std::size_t{1} << 16;  // bytes
constexpr std::size_t kEnd = 256;                     // the symbol behind the literals
constexpr std::size_t kSymbols = 286;
constexpr std::size_t kLeastRun = 3, kMostRun = 258;
constexpr std::array<std::uint16_t, 29> kRunFrom = {3,  4,  5,  6,   7,   8,   9,   10,  11, 13,
                                                    15, 17, 19, 23,  27,  31,  35,  43,  51, 59,
                                                    67, 83, 99, 115, 131, 163, 195, 227, 258};
constexpr std::array<std::uint8_t, 29> kRunExtra = {0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2,
                                                    2, 3, 3, 3, 3, 4, 4, 4, 4, 5, 5, 5, 5, 0};

class Bits {
 public:
  explicit Bits(std::string& to) : to_(to) {}
  // The lowest `count` bits, the lowest first; at most 32.
  void put(std::uint32_t value, unsigned count) {
    held_ |= std::uint64_t{value} << count_;
    count_ += count;
    for (; count_ >= 8; count_ -= 8, held_ >>= 8U) to_ += static_cast<char>(held_ & 0xFFU);
  }
  void fill_byte() { put(0, (8 - count_) % 8); }

 private:
  std::string& to_;
  std::uint64_t held_ = 0;
  unsigned count_ = 0;  // below 8 between calls
};

// How many bits each symbol's code has, 0 where it does not occur, at most `limit`. The code is
// Huffman's, of counts that are made more alike until they fit.
std::vector<std::uint8_t> lengths_of(std::vector<std::uint32_t> counts, unsigned limit) {
  while (true) {
    using Node = std::pair<std::uint64_t, std::size_t>;  // count, number
    std::priority_queue<Node, std::vector<Node>, std::greater<>> open;
    std::vector<std::size_t> parents(counts.size());
    for (std::size_t i = 0; i < counts.size(); ++i) {
      if (counts[i] > 0) open.emplace(counts[i], i);
    }
    if (open.size() == 1) {  // a code has at least one bit
      std::vector<std::uint8_t> lengths(counts.size());
      lengths[open.top().second] = 1;
      return lengths;
    }
    while (open.size() > 1) {
      const Node a = open.top();
      open.pop();
      const Node b = open.top();
      open.pop();
      parents[a.second] = parents[b.second] = parents.size();
      open.emplace(a.first + b.first, parents.size());
      parents.push_back(0);
    }
    std::vector<std::uint8_t> depths(parents.size());
    for (std::size_t i = parents.size() - 1; i-- > 0;) {
      if (parents[i] != 0) depths[i] = static_cast<std::uint8_t>(depths[parents[i]] + 1);
    }
    depths.resize(counts.size());
    if (*std::ranges::max_element(depths) <= limit) return depths;
    for (std::uint32_t& count : counts) count = (count + 1) / 2;
  }
}

// The codes of these lengths, their bits in the order in which they are written.
std::vector<std::uint16_t> codes_of(std::span<const std::uint8_t> lengths) {
  std::vector<std::uint16_t> codes(lengths.size());
  std::uint32_t next = 0;
  for (unsigned length = 1; length <= 15; ++length, next <<= 1U) {
    for (std::size_t i = 0; i < lengths.size(); ++i) {
      if (lengths[i] != length) continue;
      for (unsigned bit = 0; bit < length; ++bit) {
        codes[i] = static_cast<std::uint16_t>(codes[i] << 1U | (next >> bit & 1U));
      }
      ++next;
    }
  }
  return codes;
}

struct Token {
  std::uint16_t symbol = 0;
  std::uint16_t run = 0;  // bytes, of a run
};

std::vector<Token> tokens_of(std::string_view block) {
  std::vector<Token> tokens;
  tokens.reserve(block.size() + 1);
  for (std::size_t at = 0; at < block.size();) {
    std::size_t run = 0;
    if (at > 0 && block[at] == block[at - 1]) {
      const std::size_t most = std::min(kMostRun, block.size() - at);
      while (run < most && block[at + run] == block[at - 1]) ++run;
    }
    if (run < kLeastRun) {
      tokens.push_back({static_cast<std::uint8_t>(block[at++]), 0});
      continue;
    }
    const auto from = std::ranges::upper_bound(kRunFrom, run) - kRunFrom.begin() - 1;
    tokens.push_back({static_cast<std::uint16_t>(kEnd + 1 + static_cast<std::size_t>(from)),
                      static_cast<std::uint16_t>(run)});
    at += run;
  }
  tokens.push_back({kEnd, 0});
  return tokens;
}

void put_block(std::string_view block, bool is_last, Bits& bits) {
  const std::vector<Token> tokens = tokens_of(block);
  std::vector<std::uint32_t> counts(kSymbols);
  for (const Token& one : tokens) ++counts[one.symbol];
  std::vector<std::uint8_t> lengths = lengths_of(std::move(counts), 15);
  const std::vector<std::uint16_t> codes = codes_of(lengths);

  lengths.push_back(1);  // of the one distance
  std::vector<std::uint32_t> length_counts(19);
  for (const std::uint8_t length : lengths) ++length_counts[length];
  const std::vector<std::uint8_t> bits_of = lengths_of(std::move(length_counts), 7);
  const std::vector<std::uint16_t> codes_of_lengths = codes_of(bits_of);
  bits.put(is_last ? 1 : 0, 1);
  bits.put(2, 2);  // dynamic codes
  bits.put(kSymbols - 257, 5);
  bits.put(0, 5);  // one distance
  bits.put(15, 4);
  for (const std::size_t symbol :
       {16, 17, 18, 0, 8, 7, 9, 6, 10, 5, 11, 4, 12, 3, 13, 2, 14, 1, 15}) {
    bits.put(bits_of[symbol], 3);
  }
  for (const std::uint8_t length : lengths) bits.put(codes_of_lengths[length], bits_of[length]);
  for (const Token& one : tokens) {
    bits.put(codes[one.symbol], lengths[one.symbol]);
    if (one.symbol <= kEnd) continue;
    const std::size_t from = one.symbol - kEnd - 1;
    bits.put(static_cast<std::uint32_t>(one.run - kRunFrom[from]), kRunExtra[from]);
    bits.put(0, 1);  // the distance
  }
}

}  // namespace

std::string gzipped(std::string_view bytes) {
  std::string out("\x1f\x8b\x08\0\0\0\0\0\0\xff", 10);
  Bits bits(out);
  for (std::size_t at = 0; at == 0 || at < bytes.size(); at += kBlock) {
    put_block(bytes.substr(at, kBlock), at + kBlock >= bytes.size(), bits);
  }
  bits.fill_byte();
  bits.put(crc32(bytes), 32);
  bits.put(static_cast<std::uint32_t>(bytes.size() & 0xFFFFFFFFU), 32);
  return out;
}

}  // namespace trainmon::page
