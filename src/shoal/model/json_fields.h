#pragma once

#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <utility>

#include "shoal/base/error.h"

// For .cpp files of this room only: nlohmann-json is a private package.
namespace shoal::model {

/// One JSON object read key by key, so that every mistake names file, key and rule.
class JsonFields {
 public:
  JsonFields(const nlohmann::json& object, std::string file, std::string path = "")
      : object_(object), file_(std::move(file)), path_(std::move(path)) {
    if (!object_.is_object()) reject("", "must be a JSON object");
  }

  static nlohmann::json parse(std::string_view text, const std::string& file) {
    try {
      // No model file is nested deeper, and printing deeper text in an error message would take one
      // stack frame a level.
      return nlohmann::json::parse(
          text, [&](int depth, nlohmann::json::parse_event_t, nlohmann::json&) {
            if (depth > 64) {
              throw Error(ErrorKind::kConfig, "model",
                          fmt::format("{}: JSON nested more than 64 deep", file));
            }
            return true;
          });
    } catch (const nlohmann::json::parse_error& error) {
      throw Error(ErrorKind::kConfig, "model",
                  fmt::format("{}: not JSON, at byte {}", file, error.byte));
    } catch (const nlohmann::json::out_of_range&) {
      throw Error(ErrorKind::kConfig, "model",
                  fmt::format("{}: holds a number that is too large", file));
    }
  }

  /// Returns true if the key is present and not null.
  bool has(const std::string& key) {
    read_.insert(key);
    const auto at = object_.find(key);
    return at != object_.end() && !at->is_null();
  }
  const nlohmann::json& at(const std::string& key) {
    if (!has(key)) reject(key, "is missing");
    return object_.at(key);
  }
  std::int64_t integer(const std::string& key) {
    const auto& value = at(key);
    if (!value.is_number_integer())
      reject(key, fmt::format("= {}: must be a whole number", value.dump()));
    return value.get<std::int64_t>();
  }
  std::int64_t integer(const std::string& key, std::int64_t otherwise) {
    return has(key) ? integer(key) : otherwise;
  }
  double real(const std::string& key) {
    const auto& value = at(key);
    if (!value.is_number()) reject(key, fmt::format("= {}: must be a number", value.dump()));
    return value.get<double>();
  }
  double real(const std::string& key, double otherwise) { return has(key) ? real(key) : otherwise; }
  bool boolean(const std::string& key) {
    const auto& value = at(key);
    if (!value.is_boolean()) reject(key, fmt::format("= {}: must be true or false", value.dump()));
    return value.get<bool>();
  }
  bool boolean(const std::string& key, bool otherwise) {
    return has(key) ? boolean(key) : otherwise;
  }
  std::string text(const std::string& key) {
    const auto& value = at(key);
    if (!value.is_string()) reject(key, fmt::format("= {}: must be text", value.dump()));
    return value.get<std::string>();
  }
  std::string text(const std::string& key, const std::string& otherwise) {
    return has(key) ? text(key) : otherwise;
  }

  /// Throws Error(config) for the first key that was never read.
  void no_others() const {
    for (const auto& item : object_.items())
      if (!read_.contains(item.key())) reject(item.key(), "is not a known key");
  }
  [[noreturn]] void reject(const std::string& key, const std::string& rule) const {
    std::string where = path_ + key;
    if (where.ends_with('.')) where.pop_back();  // the object itself
    throw Error(ErrorKind::kConfig, "model",
                fmt::format("{}: {}{}{}", file_, where, where.empty() ? "" : " ", rule));
  }

 private:
  const nlohmann::json& object_;
  std::string file_;
  std::string path_;
  std::set<std::string> read_;
};

}  // namespace shoal::model
