// The index beside a segment: its bytes as they are, and those of a sound one with bytes changed,
// the checksum put right, beside the segment that it is of.
#include <set>
#include <string>

#include "base/file.h"
#include "fuzz.h"
#include "read/index_file.h"
#include "read/log_index.h"
#include "sinks/compress.h"
#include "sinks/log_format.h"

namespace trainmon::fuzz {
namespace {

constexpr std::size_t kSize = 46, kCodec = kSize + 8, kBody = kCodec + 1, kChecksum = 8;

struct Seen {
  std::set<std::uint64_t> seqs;
  std::size_t batches = 0;
};
Seen see(LogIndex::Kept kept) {
  Allowance allowance;
  const LogIndex index(scratch(), 0, 0, allowance, 1, kept);
  Seen seen;
  std::vector<Damage> damage;
  for (const LogIndex::Piece& piece : index.pieces()) {
    index.read(
        piece, [](SeriesId) { return true; },
        [](const LogIndex::BatchFacts&) { return std::optional(Columns::all()); },
        [&](RecordBatch&& batch, const LogIndex::BatchFacts&) {
          ++seen.batches;
          for (const Row& row : batch.rows) {
            check(index.contents().series.contains(row.key.series), "the series of a row is known");
            seen.seqs.insert(row.key.seq);
          }
        },
        damage);
  }
  for (const Damage& one : damage) check(!one.what.empty(), "damage says what");
  return seen;
}

// The index of the sound log of the corpus, not packed, and what that log holds.
struct Sound {
  std::string bytes;
  Seen seen;
};
const Sound& sound() {
  static const Sound known = [] {
    put(scratch() / "log-000000.tmlog", read_file(TRAINMON_DAMAGED "/base/log-000000.tmlog"));
    const std::string packed = [] {
      see({0, true});
      return read_file(scratch() / "log-000000.tmindex");
    }();
    log_format::ByteReader size(std::string_view(packed).substr(kSize));
    const std::string_view body(packed.data() + kBody, packed.size() - kBody - kChecksum);
    std::string unpacked;
    check(decompress(body, size.fixed<std::uint64_t>(), unpacked), "the index is packed");
    std::string bytes = packed.substr(0, kCodec) + '\0' + unpacked + std::string(kChecksum, '\0');
    return Sound{std::move(bytes), see({})};
  }();
  return known;
}

}  // namespace
}  // namespace trainmon::fuzz

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace trainmon;
  const fuzz::Sound& sound = fuzz::sound();
  index_of(fuzz::text_of(data, size));
  std::string changed = sound.bytes;
  const std::size_t body = changed.size() - fuzz::kBody - fuzz::kChecksum;
  for (std::size_t i = 0; i + 3 <= size; i += 3) {
    const std::size_t at = (std::size_t{data[i]} << 8 | data[i + 1]) % body;
    changed[fuzz::kBody + at] = static_cast<char>(data[i + 2]);
  }
  changed.resize(changed.size() - fuzz::kChecksum);
  const std::uint64_t digest = content_digest(changed);
  log_format::ByteWriter(changed).fixed(digest);
  fuzz::put(fuzz::scratch() / "log-000000.tmindex", changed);
  const fuzz::Seen seen = fuzz::see({0, true});
  fuzz::check(seen.batches <= sound.seen.batches, "no batch comes twice");
  for (const std::uint64_t seq : seen.seqs) {
    fuzz::check(sound.seen.seqs.contains(seq), "no row that was never written");
  }
  return 0;
}
