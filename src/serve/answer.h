// What is asked over HTTP, and what is answered.
#pragma once

#include <memory>
#include <string>
#include <string_view>

namespace trainmon::serve {

// The parts of a request that are looked at, as they came. A header that is absent is empty.
struct Asked {
  std::string_view method;
  std::string_view target;
  std::string_view host;
  std::string_view origin;
  std::string_view if_none_match;
  std::string_view accept_language;
};

struct Answer {
  unsigned status = 200;
  std::string_view type = "text/plain; charset=utf-8";
  std::string tag;                          // ETag without its quotes; "": none
  std::string nonce;                        // of its scripts and styles; "": it has none
  std::string location;                     // where it is instead; "": here
  std::shared_ptr<const std::string> body;  // nullptr: empty; shared by all who ask
};

}  // namespace trainmon::serve
