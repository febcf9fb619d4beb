#include "shoal/train/config/keys.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <type_traits>

#include "shoal/model/model_spec.h"
#include "shoal/train/config/key_lister.h"
#include "shoal/train/config/toml_text.h"

namespace shoal::train {
namespace {

// The order here is the order of sections and keys in job.md, --print-config and config.toml.
std::vector<ConfigKey> list_keys() {
  std::vector<ConfigKey> keys;
  list_model_keys(keys);
  list_learning_keys(keys);
  list_parallelism_keys(keys);
  list_low_communication_keys(keys);
  list_elastic_keys(keys);
  list_run_keys(keys);
  return keys;
}

template <class T>
const char* type_words() {
  if constexpr (std::is_same_v<T, bool>) return "true or false";
  if constexpr (std::is_same_v<T, std::int64_t>) return "a whole number";
  if constexpr (std::is_same_v<T, double>) return "a number";
  if constexpr (std::is_same_v<T, std::string>) return "a text";
  if constexpr (std::is_same_v<T, std::vector<std::int64_t>>) return "a list of whole numbers";
  if constexpr (std::is_same_v<T, std::vector<double>>) return "a list of numbers";
  if constexpr (std::is_same_v<T, std::vector<std::string>>) return "a list of texts";
}

template <class T>
struct Unwrap {
  using type = T;
};
template <class T>
struct Unwrap<std::optional<T>> {
  using type = T;
};

std::string range_words(const Allowed& allowed) {
  const bool least = allowed.least > -kUnbounded;
  const bool most = allowed.most < kUnbounded;
  const auto number = [](double value) { return number_text(value); };
  if (least && allowed.above_least) {
    return fmt::format(" above {}{}", number(allowed.least),
                       most ? " and at most " + number(allowed.most) : "");
  }
  if (least && most) {
    return fmt::format(" from {} to {}{}", number(allowed.least),
                       allowed.below_most ? "below " : "", number(allowed.most));
  }
  if (least) return fmt::format(" of at least {}", number(allowed.least));
  return most ? fmt::format(" of at most {}", number(allowed.most)) : "";
}

}  // namespace

std::span<const ConfigKey> all_keys() {
  // Made at first use: other static objects may not exist before.
  static const std::vector<ConfigKey> keys = list_keys();
  return keys;
}

const ConfigKey* find_key(const std::string& section, const std::string& name) {
  const auto keys = all_keys();
  const auto found = std::find_if(keys.begin(), keys.end(), [&](const ConfigKey& key) {
    return key.section == section && key.name == name;
  });
  return found == keys.end() ? nullptr : &*found;
}

std::vector<std::string> section_names() {
  std::vector<std::string> names;
  for (const ConfigKey& key : all_keys())
    if (names.empty() || names.back() != key.section) names.push_back(key.section);
  return names;
}

std::string describe_allowed(const ConfigKey& key) {
  if (key.path() == "model.name")
    return fmt::format("one of {}", fmt::join(model::model_names(), ", "));
  if (!key.allowed.words.empty())
    return fmt::format("one of \"{}\"", fmt::join(key.allowed.words, "\", \""));
  JobConfig defaults;
  const auto type = []<class T>(const T&) -> std::string {
    if constexpr (std::is_same_v<T, ChoicePlace>) {
      return type_words<std::string>();
    } else {
      return type_words<typename Unwrap<std::remove_pointer_t<T>>::type>();
    }
  };
  return std::visit(type, key.place(defaults)) + range_words(key.allowed);
}

std::string value_text(const ConfigKey& key, const JobConfig& config) {
  const auto text = []<class T>(const T& place) -> std::string {
    if constexpr (std::is_same_v<T, ChoicePlace>) {
      const std::string name = place.get();
      return name.empty() ? name : toml_text(name);
    } else if constexpr (requires { place->has_value(); }) {
      return *place ? toml_text(**place) : std::string();
    } else {
      return toml_text(*place);
    }
  };
  // The table's accessors give mutable places; nothing is written through this one.
  return std::visit(text, key.place(const_cast<JobConfig&>(config)));
}

}  // namespace shoal::train
