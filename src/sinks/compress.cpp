// Fastest level: the columns are packed already, and the writer shares the machine with training.
#include "sinks/compress.h"

#if defined(TRAINMON_ZSTD)
#include <zstd.h>

#include <memory>
#endif

namespace trainmon {

#if defined(TRAINMON_ZSTD)

bool has_zstd() {
  return true;
}

std::optional<std::string> compressed(std::string_view bytes) {
  struct Free {
    void operator()(ZSTD_CCtx* context) const { ZSTD_freeCCtx(context); }
  };
  // Kept: setting one up costs more than compressing a batch.
  static thread_local const std::unique_ptr<ZSTD_CCtx, Free> context(ZSTD_createCCtx());
  if (context == nullptr) return std::nullopt;
  std::string out(ZSTD_compressBound(bytes.size()), '\0');
  const std::size_t size =
      ZSTD_compressCCtx(context.get(), out.data(), out.size(), bytes.data(), bytes.size(), 1);
  if (ZSTD_isError(size) != 0) return std::nullopt;
  out.resize(size);
  return out;
}

bool decompress(std::string_view bytes, std::size_t size, std::string& out) {
  struct Free {
    void operator()(ZSTD_DCtx* context) const { ZSTD_freeDCtx(context); }
  };
  // What the frame itself claims is checked first, so that nothing is allocated on its word alone.
  if (ZSTD_getFrameContentSize(bytes.data(), bytes.size()) != size) return false;
  static thread_local const std::unique_ptr<ZSTD_DCtx, Free> context(ZSTD_createDCtx());
  if (context == nullptr) return false;
  out.resize(size);
  const std::size_t written =
      ZSTD_decompressDCtx(context.get(), out.data(), out.size(), bytes.data(), bytes.size());
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
