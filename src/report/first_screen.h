// What the page says before any picture, as JSON for the page and for programs.
#pragma once

#include <filesystem>
#include <span>
#include <string>

#include "read/account.h"
#include "report/gather.h"

namespace trainmon::page {

// docs/report.md has the members. `made` has what was found, `gathered` how the pictures were cut,
// `books` what became of each run's rows.
std::string first_screen_json(std::span<const std::filesystem::path> runs,
                              const ReportOptions& options, const Report& made,
                              const Gathered& gathered, std::span<const Account> books);

}  // namespace trainmon::page
