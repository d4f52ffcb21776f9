// A database of ours.
#include "source_case.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace trainmon;
  const std::filesystem::path file = fuzz::scratch() / "stats.db";
  fuzz::put(file, fuzz::text_of(data, size));
  fuzz::read_all(open_sqlite_source, file);
  std::error_code ignored;
  std::filesystem::remove(file.native() + "-wal", ignored);
  std::filesystem::remove(file.native() + "-shm", ignored);
  return 0;
}
