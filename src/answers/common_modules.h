// What the names of several tensors have in common: the module that all of them are in.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace trainmon {

// "blocks.2.mlp.weight" without what it is of its module.
std::vector<std::string> modules_of(std::string_view name);
// Keeps what both begin with. Numbers are those of layers, of which one is as another: "*".
void keep_common(std::vector<std::string>& modules, const std::vector<std::string>& others);
// "blocks.*.mlp". What stands behind the last module that has a name tells nothing. "" for none.
std::string module_text(std::vector<std::string> modules);

}  // namespace trainmon
