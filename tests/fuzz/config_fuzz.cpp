// A configuration: refused with every fault named, or the same after it was written and read again.
#include "fuzz.h"
#include "trainmon/config.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace trainmon;
  try {
    const Config config = config_from_json(fuzz::text_of(data, size));
    fuzz::check(validate(config).empty(), "what was read is valid");
    const std::string text = config_to_json(config);
    fuzz::check(config_to_json(config_from_json(text)) == text, "a config reads as written");
  } catch (const ConfigError& error) {
    fuzz::check(!error.faults().empty(), "a refusal names its faults");
  }
  return 0;
}
