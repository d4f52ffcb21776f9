// What the page says before any picture, as JSON for the page and for programs.
#pragma once

#include <filesystem>
#include <span>
#include <string>

#include "report/gather.h"

namespace trainmon::page {

// docs/report.md has the members. `made` has what was found, `gathered` how the pictures were cut.
std::string first_screen_json(std::span<const std::filesystem::path> runs,
                              const ReportOptions& options, const Report& made,
                              const Gathered& gathered);

}  // namespace trainmon::page
