// Checks and converts single values between JSON and Config, as the table of keys says.
#pragma once

#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "config/key_table.h"

namespace trainmon {

// Appends a fault for each thing wrong with `value` as the value of `key`; true when there is none.
bool check_value(const Key& key, const nlohmann::json& value, std::vector<std::string>& faults);
// Appends the faults that concern two keys at once.
void check_together(const Config& config, std::vector<std::string>& faults);

// The JSON object in `text`, with a fault for each key written twice. Throws ConfigError for what
// leaves nothing to read: bytes over 1 MiB, syntax, nesting over 32 levels, no object.
nlohmann::json read_object(std::string_view text, std::string_view what,
                           std::vector<std::string>& faults);
// The fault of a key that is none of `known`.
std::string unknown_key(const std::string& name, const nlohmann::json& value,
                        std::span<const std::string_view> known);

// Both for values without a fault.
void set_field(Config& config, const Key& key, const nlohmann::json& value);
nlohmann::json field_value(const Config& config, const Key& key);

// JSON text of a value, shortened to a length that suits an error message.
std::string value_text(const nlohmann::json& value);

}  // namespace trainmon
