#include "shoal/checkpoint/format/strict_json.h"

#include <fmt/format.h>

#include <limits>
#include <set>

#include "shoal/base/number.h"

namespace shoal::checkpoint::format {

using nlohmann::json;

Error broken(const std::string& where, const std::string& what) {
  return Error(ErrorKind::kData, "checkpoint", where + ": " + what);
}

json parse_json(std::string_view text, const std::string& where) {
  constexpr int kDeepest = 64;
  std::vector<std::set<std::string>> keys;  // of the objects that are open, by depth
  const auto check = [&](int depth, json::parse_event_t event, json& value) {
    if (depth > kDeepest)
      throw broken(where, fmt::format("JSON nested more than {} deep", kDeepest));
    // The parser keeps the last of equal keys, other programs may keep the first: one file would
    // mean two things.
    if (event == json::parse_event_t::object_start) {
      if (static_cast<int>(keys.size()) <= depth) keys.resize(depth + 1);
      keys[depth].clear();
    } else if (event == json::parse_event_t::key) {
      const std::string& key = value.get_ref<const std::string&>();
      if (!keys[depth - 1].insert(key).second)
        throw broken(where, fmt::format("JSON key '{}' stands twice in one object", key));
    }
    return true;
  };
  try {
    return json::parse(text, check);
  } catch (const json::exception& error) {
    throw broken(where, fmt::format("not JSON: {}", error.what()));
  }
}

bool is_utf8(const std::string& text) {
  try {
    json(text).dump();
    return true;
  } catch (const json::type_error&) {
    return false;
  }
}

const json& field(const json& object, const char* key, const std::string& where) {
  if (!object.is_object()) throw broken(where, fmt::format("an object with '{}' is expected", key));
  const auto found = object.find(key);
  if (found == object.end()) throw broken(where, fmt::format("'{}' is missing", key));
  return *found;
}

std::int64_t whole_number(const json& value, const std::string& where) {
  if (!value.is_number_unsigned() ||
      value.get<std::uint64_t>() >
          static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max()))
    throw broken(where, "a whole number from 0 is expected");
  return static_cast<std::int64_t>(value.get<std::uint64_t>());
}

std::vector<std::int64_t> whole_numbers(const json& value, const std::string& where) {
  if (!value.is_array()) throw broken(where, "a list of whole numbers is expected");
  std::vector<std::int64_t> numbers;
  for (const json& number : value) numbers.push_back(whole_number(number, where));
  return numbers;
}

std::string string_value(const json& value, const std::string& where) {
  if (!value.is_string()) throw broken(where, "a string is expected");
  return value.get<std::string>();
}

std::uint64_t checksum_value(const json& value, const std::string& where) {
  const std::string digits = string_value(value, where);
  const auto checksum = parse_number<std::uint64_t>(digits, 16);
  if (digits.size() != 16 || !checksum) throw broken(where, "16 hexadecimal digits are expected");
  return *checksum;
}

}  // namespace shoal::checkpoint::format
