#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "shoal/base/error.h"

/// Reading JSON that nobody vouches for. Only for .cpp files of this room: the header costs a
/// second.
namespace shoal::checkpoint::format {

/// Parses strictly: no repeated key, no nesting beyond 64. Throws Error(data) that begins with
/// `where`.
nlohmann::json parse_json(std::string_view text, const std::string& where);

/// An Error(data) that begins with `where`.
Error broken(const std::string& where, const std::string& what);

/// The value under `key`, which must be an object's and of the right kind. Throws Error(data).
const nlohmann::json& field(const nlohmann::json& object, const char* key,
                            const std::string& where);
std::int64_t whole_number(const nlohmann::json& value,
                          const std::string& where);  ///< 0 to 2^63 - 1
std::vector<std::int64_t> whole_numbers(const nlohmann::json& value, const std::string& where);
std::string string_value(const nlohmann::json& value, const std::string& where);
std::uint64_t checksum_value(const nlohmann::json& value,
                             const std::string& where);  ///< 16 hexadecimal digits

}  // namespace shoal::checkpoint::format
