#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "shoal/base/error.h"

/// Reads JSON that may come from anywhere. Only .cpp files of this room may include it: the header
/// costs a second.
namespace shoal::checkpoint::format {

/// Parses strictly: no repeated key, no nesting beyond 64. Throws Error(data) that begins with
/// `where`.
nlohmann::json parse_json(std::string_view text, const std::string& where);

/// Tells whether JSON can hold the text.
bool is_utf8(const std::string& text);

/// Returns an Error(data) whose message begins with `where`.
Error broken(const std::string& where, const std::string& what);

/// Returns the value under `key`. Throws Error(data) where `object` is no object or has no such
/// key. The functions below throw Error(data) for a value of another kind.
const nlohmann::json& field(const nlohmann::json& object, const char* key,
                            const std::string& where);
std::int64_t whole_number(const nlohmann::json& value,
                          const std::string& where);  ///< 0 to 2^63 - 1
std::vector<std::int64_t> whole_numbers(const nlohmann::json& value, const std::string& where);
std::string string_value(const nlohmann::json& value, const std::string& where);
std::uint64_t checksum_value(const nlohmann::json& value,
                             const std::string& where);  ///< 16 hexadecimal digits

}  // namespace shoal::checkpoint::format
