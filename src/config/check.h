// Checks and converts single values between JSON and Config, as the table of keys says.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "config/key_table.h"

namespace trainmon {

// Appends a fault for each thing wrong with `value` as the value of `key`; true when there is none.
bool check_value(const Key& key, const nlohmann::json& value, std::vector<std::string>& faults);
// Appends the faults that concern two keys at once.
void check_together(const Config& config, std::vector<std::string>& faults);

// Both for values without a fault.
void set_field(Config& config, const Key& key, const nlohmann::json& value);
nlohmann::json field_value(const Config& config, const Key& key);

// JSON text of a value, shortened to a length that suits an error message.
std::string value_text(const nlohmann::json& value);

}  // namespace trainmon
