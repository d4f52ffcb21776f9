// Payloads from the cells of text files and databases.
#pragma once

#include <optional>
#include <string_view>

#include "trainmon/record.h"

namespace trainmon {

// The other way of payload_type_name() and payload_cell(); nullopt where it is none.
std::optional<Payload> payload_from_cell(std::string_view type, std::string_view cell);

}  // namespace trainmon
