// A gzip stream (RFC 1952) of Huffman codes and runs: what the numbers of a page need, and what
// every browser unpacks.
#pragma once

#include <string>
#include <string_view>

namespace trainmon::page {

// Beside repeated bytes no repetition is looked for: it is as small as zlib's on planes of floats.
std::string gzipped(std::string_view bytes);

}  // namespace trainmon::page
