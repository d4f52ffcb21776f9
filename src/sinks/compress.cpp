// Fastest level: the columns are packed already, and the writer shares the machine with training.
#include "sinks/compress.h"

#if defined(TRAINMON_ZSTD)
#include <zstd.h>

#include "base/of_thread.h"
#endif

namespace trainmon {

#if defined(TRAINMON_ZSTD)

namespace {

// One context of each thread: setting one up costs more than compressing a batch.
void end_compressing(void* context) {
  ZSTD_freeCCtx(static_cast<ZSTD_CCtx*>(context));
}
void end_decompressing(void* context) {
  ZSTD_freeDCtx(static_cast<ZSTD_DCtx*>(context));
}

}  // namespace

bool has_zstd() {
  return true;
}

std::optional<std::string> compressed(std::string_view bytes) {
  ZSTD_CCtx* const context = made_of_thread<ZSTD_createCCtx, end_compressing>();
  if (context == nullptr) return std::nullopt;
  std::string out(ZSTD_compressBound(bytes.size()), '\0');
  const std::size_t size =
      ZSTD_compressCCtx(context, out.data(), out.size(), bytes.data(), bytes.size(), 1);
  if (ZSTD_isError(size) != 0) return std::nullopt;
  out.resize(size);
  return out;
}

bool decompress(std::string_view bytes, std::size_t size, std::string& out) {
  // What the frame itself claims is checked first, so that nothing is allocated on its word alone.
  if (ZSTD_getFrameContentSize(bytes.data(), bytes.size()) != size) return false;
  ZSTD_DCtx* const context = made_of_thread<ZSTD_createDCtx, end_decompressing>();
  if (context == nullptr) return false;
  out.resize(size);
  const std::size_t written =
      ZSTD_decompressDCtx(context, out.data(), out.size(), bytes.data(), bytes.size());
  return ZSTD_isError(written) == 0 && written == size;
}

#else

bool has_zstd() {
  return false;
}
std::optional<std::string> compressed(std::string_view) {
  return std::nullopt;
}
bool decompress(std::string_view, std::size_t, std::string&) {
  return false;
}

#endif

}  // namespace trainmon
