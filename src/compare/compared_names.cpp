// Wrappers put a component of their own into the path of whatever they wrap.
#include "compare/compared_names.h"

#include <algorithm>
#include <array>

#include "compare/compare.h"

namespace trainmon {
namespace {

constexpr std::array<std::string_view, 9> kWrappers = {
    "module",                      // DataParallel, DDP, DeepSpeed, Megatron's Float16Module
    "_orig_mod",                   // torch.compile
    "_fsdp_wrapped_module",        // FSDP1
    "_fpw_module",                 // FSDP1, flattened parameters
    "_checkpoint_wrapped_module",  // checkpoint_wrapper
    "_offload_wrapped_module",     // offload_wrapper
    "_forward_module",             // Lightning
    "_original_module",
    "_dp_wrapped_module"};

bool is_number(std::string_view text) {
  return !text.empty() &&
         std::all_of(text.begin(), text.end(), [](char c) { return c >= '0' && c <= '9'; });
}

}  // namespace

std::string unwrapped_name(std::string_view name) {
  std::string kept;
  for (std::size_t begin = 0; begin <= name.size();) {
    const std::size_t end = std::min(name.find('.', begin), name.size());
    const std::string_view part = name.substr(begin, end - begin);
    begin = end + 1;
    if (std::find(kWrappers.begin(), kWrappers.end(), part) != kWrappers.end()) continue;
    if (!kept.empty()) kept += '.';
    kept += part;
  }
  return kept;
}

std::string matched_name(std::string_view unwrapped, std::string_view element) {
  std::string joined(unwrapped);
  if (!element.empty()) {
    joined += joined.empty() ? "" : ".";
    joined += element;
  }
  // The end "input.0" or "input_0" of what is the only one, as far as the name can tell.
  for (const std::string_view word : {"input", "output"}) {
    const std::size_t at = joined.rfind(word);
    if (at == std::string::npos || (at > 0 && joined[at - 1] != '.')) continue;
    const std::size_t end = at + word.size();
    if (end < joined.size() && joined[end] == '.' && is_number(joined.substr(end + 1))) {
      joined[end] = '_';
    }
    if (joined.substr(end) == "_0") joined.resize(end);
  }
  return joined;
}

}  // namespace trainmon
