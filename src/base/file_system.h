// What kind of file system a directory is on.
#pragma once

#include <filesystem>
#include <optional>
#include <string_view>

namespace trainmon {

// The name of the network file system `directory` is on; nullopt for a local one, and where nobody
// can say.
std::optional<std::string_view> network_file_system(const std::filesystem::path& directory);

}  // namespace trainmon
