// rows.csv as a conversion or the sink csv writes it.
#include "source_case.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace trainmon;
  const std::string_view text = fuzz::text_of(data, size);
  fuzz::put(fuzz::scratch() / "rows.csv", text);
  const fuzz::Converted done = fuzz::read_all(open_csv_source, fuzz::scratch());
  fuzz::check_lines(done, text);
  return 0;
}
