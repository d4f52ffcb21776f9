#pragma once

#include <stdexcept>

namespace trainmon {

// Long work was called off; there is no output.
class Cancelled : public std::runtime_error {
 public:
  Cancelled() : std::runtime_error("called off; nothing was written") {}
};

}  // namespace trainmon
