// Bytes become bits sixteen at a time where the processor can, else eight at a time.
#include "directions/direction_file.h"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <stdexcept>

#if defined(__SSE2__)
#include <emmintrin.h>
#endif

#include "base/npy.h"
#include "base/sizes.h"

namespace trainmon {
namespace {

constexpr std::int64_t kHeadBytes = 16384;  // NumPy itself reads no head of more than 10,000
constexpr std::size_t kBlockBytes = 65536;

// What makes a bit of a byte: bools are true where they are not zero, signs have two planes.
enum class Truth : std::uint8_t { not_zero, positive, negative };

Truth truth_of(bool is_signed, int plane) {
  if (!is_signed) return Truth::not_zero;
  return plane == 0 ? Truth::positive : Truth::negative;
}

bool is_true(std::byte byte, Truth truth) {
  const auto value = static_cast<std::int8_t>(byte);
  if (truth == Truth::not_zero) return value != 0;
  return truth == Truth::positive ? value > 0 : value < 0;
}

// One bit for each of 64 bytes.
template <Truth truth>
std::uint64_t bits_of(const std::byte* bytes) {
  std::uint64_t bits = 0;
#if defined(__SSE2__)
  const __m128i zero = _mm_setzero_si128();
  for (int i = 0; i < 4; ++i) {
    const __m128i sixteen = _mm_loadu_si128(reinterpret_cast<const __m128i*>(bytes + 16 * i));
    int mask = _mm_movemask_epi8(sixteen);  // the sign bits
    if (truth == Truth::not_zero) mask = ~_mm_movemask_epi8(_mm_cmpeq_epi8(sixteen, zero));
    if (truth == Truth::positive) mask = _mm_movemask_epi8(_mm_cmpgt_epi8(sixteen, zero));
    bits |= static_cast<std::uint64_t>(mask & 0xFFFF) << (16 * i);
  }
#else
  constexpr std::uint64_t kLow = 0x7F7F7F7F7F7F7F7F;
  for (int i = 0; i < 8; ++i) {
    std::uint64_t eight;
    std::memcpy(&eight, bytes + 8 * i, 8);
    const std::uint64_t negative = eight & ~kLow;
    const std::uint64_t low = ((eight & kLow) + kLow) & ~kLow;  // its other bits are not all zero
    std::uint64_t tops = negative;
    if (truth == Truth::not_zero) tops = low | negative;
    if (truth == Truth::positive) tops = low & ~negative;
    // Gathers the eight top bits, the first byte's lowest.
    bits |= (((tops >> 7) * 0x0102040810204080) >> 56) << (8 * i);
  }
#endif
  return bits;
}

template <Truth truth>
void pack(const std::byte* bytes, std::span<std::uint64_t> words) {
  for (std::uint64_t& word : words) {
    word = bits_of<truth>(bytes);
    bytes += 64;
  }
}

void pack(Truth truth, const std::byte* bytes, std::span<std::uint64_t> words) {
  if (truth == Truth::not_zero) return pack<Truth::not_zero>(bytes, words);
  if (truth == Truth::positive) return pack<Truth::positive>(bytes, words);
  pack<Truth::negative>(bytes, words);
}

}  // namespace

DirectionFile::DirectionFile(const std::filesystem::path& path) : path_(path) {
  if (path.extension() == kSignFileEnding) {
    open_sign(path);
  } else {
    open_npy(path);
  }
}

void DirectionFile::open_sign(const std::filesystem::path& path) {
  packed_ = read_file(path);
  SignFile sign = read_sign_file(std::as_bytes(std::span(packed_)));
  sizes_ = std::move(sign.sizes);
  count_ = sign.count;
  planes_ = std::move(sign.planes);
}

void DirectionFile::open_npy(const std::filesystem::path& path) {
  file_ = open_file(path);
  struct stat status {};
  if (::fstat(file_.fd(), &status) != 0) throw file_error(errno, "cannot read", path);
  std::array<std::byte, kHeadBytes> head_bytes;
  const std::span beginning(head_bytes.data(),
                            static_cast<std::size_t>(std::min(kHeadBytes, status.st_size)));
  read_bytes(0, beginning);
  NpyHead head = read_npy_head(beginning);
  is_signed_ = head.descr == "|i1";
  if (head.descr != "|b1" && !is_signed_) {
    throw std::runtime_error("its elements are " + head.descr + ", not bool");
  }
  sizes_ = std::move(head.sizes);
  count_ = *count_of(sizes_);
  is_fortran_ = head.fortran_order && sizes_.size() > 1;
  data_offset_ = static_cast<std::int64_t>(head.data_offset);
  const std::int64_t length = status.st_size - data_offset_;
  if (length < count_) throw std::runtime_error("it is cut short");
  if (length > count_) throw std::runtime_error("it is longer than its sizes say");
}

int DirectionFile::planes() const {
  return file_.is_open() ? 1 + (is_signed_ ? 1 : 0) : static_cast<int>(planes_.size());
}

void DirectionFile::read_bytes(std::int64_t first, std::span<std::byte> bytes) const {
  std::size_t at = 0;
  while (at < bytes.size()) {
    const ssize_t got = ::pread(file_.fd(), bytes.data() + at, bytes.size() - at,
                                first + static_cast<std::int64_t>(at));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) throw file_error(errno, "cannot read", path_);
    if (got == 0) throw std::runtime_error("it became shorter while it was read");
    at += static_cast<std::size_t>(got);
  }
}

void DirectionFile::read(int plane, std::int64_t first, std::span<std::uint64_t> words) const {
  std::fill(words.begin(), words.end(), 0);
  const std::int64_t left = std::max<std::int64_t>(count_ - first, 0);
  const auto wanted = std::min(static_cast<std::size_t>(left), 64 * words.size());
  if (wanted == 0) return;
  if (!rows_.empty()) {
    const std::vector<std::uint64_t>& rows = rows_[static_cast<std::size_t>(plane)];
    std::copy_n(rows.begin() + first / 64, (wanted + 63) / 64, words.begin());
    return;
  }
  if (!file_.is_open()) {
    const std::span<const std::byte> bits = planes_[static_cast<std::size_t>(plane)];
    std::memcpy(words.data(), bits.data() + first / 8, (wanted + 7) / 8);
    return;
  }
  std::array<std::byte, kBlockBytes> block;
  for (std::size_t done = 0; done < wanted;) {
    const std::size_t now = std::min(kBlockBytes, wanted - done);
    read_bytes(data_offset_ + first + static_cast<std::int64_t>(done),
               std::span(block.data(), now));
    std::fill(block.begin() + now, block.begin() + (now + 63) / 64 * 64, std::byte{0});
    pack(truth_of(is_signed_, plane), block.data(), words.subspan(done / 64, (now + 63) / 64));
    done += now;
  }
}

void DirectionFile::put_in_rows() {
  if (!is_fortran_ || count_ == 0) return;  // strides of an empty one may be beyond 64 bits
  std::vector<std::vector<std::uint64_t>> rows(static_cast<std::size_t>(planes()));
  for (auto& plane : rows) plane.resize((static_cast<std::size_t>(count_) + 63) / 64);
  std::vector<std::int64_t> strides(sizes_.size(), 1);
  for (std::size_t i = sizes_.size() - 1; i > 0; --i) strides[i - 1] = strides[i] * sizes_[i];
  std::vector<std::int64_t> index(sizes_.size());
  std::vector<std::byte> block(kBlockBytes);
  std::int64_t row = 0;  // where the element under way belongs
  for (std::int64_t first = 0; first < count_;) {
    const auto now =
        static_cast<std::size_t>(std::min(static_cast<std::int64_t>(kBlockBytes), count_ - first));
    read_bytes(data_offset_ + first, std::span(block.data(), now));
    for (std::size_t i = 0; i < now; ++i) {
      for (int plane = 0; plane < planes(); ++plane) {
        if (!is_true(block[i], truth_of(is_signed_, plane))) continue;
        rows[static_cast<std::size_t>(plane)][static_cast<std::size_t>(row / 64)] |=
            std::uint64_t{1} << (row % 64);
      }
      for (std::size_t d = 0; d < index.size(); ++d) {
        row += strides[d];
        if (++index[d] < sizes_[d]) break;
        row -= strides[d] * sizes_[d];
        index[d] = 0;
      }
    }
    first += static_cast<std::int64_t>(now);
  }
  rows_ = std::move(rows);
  is_fortran_ = false;
}

}  // namespace trainmon
