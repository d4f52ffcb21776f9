// A file of msprobe's monitor.
#include "source_case.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace trainmon;
  static const std::filesystem::path directory = [] {
    const std::filesystem::path path = fuzz::scratch() / "Dec03_21-34-40-rank0-a1";
    std::filesystem::create_directories(path);
    return path;
  }();
  const std::string_view text = fuzz::text_of(data, size);
  fuzz::put(directory / "grad_reduced_0-99.csv", text);
  const fuzz::Converted done = fuzz::read_all(open_msprobe_source, fuzz::scratch());
  fuzz::check_lines(done, text);
  return 0;
}
