// The fixed parts of a page, embedded from src/report/page when trainmon is built.
#pragma once

#include <string_view>

namespace trainmon::page {

extern const std::string_view kHtml;    // with @NONCE@, @STYLE@, @SCRIPT@, @REPORT@, @DATA@, ...
extern const std::string_view kStyle;   // all style sheets, one after another
extern const std::string_view kScript;  // all scripts, one after another

}  // namespace trainmon::page
