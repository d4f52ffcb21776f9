// control.json: refused with every fault named, or the same after it was written and read again.
#include "fuzz.h"
#include "trainmon/config.h"
#include "trainmon/control.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace trainmon;
  try {
    const Control control = control_from_json(fuzz::text_of(data, size));
    const std::string text = control_to_json(control);
    fuzz::check(control_to_json(control_from_json(text)) == text,
                "a control file reads as written");
    const Config changed = with_control(Config(), control);
    fuzz::check(validate(changed).empty(), "what a control file makes is valid");
  } catch (const ConfigError& error) {
    fuzz::check(!error.faults().empty(), "a refusal names its faults");
  }
  return 0;
}
