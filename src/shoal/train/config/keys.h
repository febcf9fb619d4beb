#pragma once

#include <functional>
#include <limits>
#include <span>
#include <string>
#include <variant>
#include <vector>

#include "shoal/train/config/job_config.h"

namespace shoal::train {

/// The value of a key that takes one of a few words: an enumerator in a JobConfig, read and written
/// by its name.
struct ChoicePlace {
  std::function<std::string()> get;             ///< empty: not set
  std::function<void(const std::string&)> set;  ///< takes a name of the enumeration
};

/// The place of a key's value in a JobConfig; its alternative is the key's type.
using Place =
    std::variant<bool*, std::int64_t*, double*, std::string*, std::vector<std::int64_t>*,
                 std::vector<double>*, std::vector<std::string>*, std::optional<bool>*,
                 std::optional<std::int64_t>*, std::optional<double>*, std::optional<std::string>*,
                 std::optional<std::vector<std::int64_t>>*, ChoicePlace>;

/// The numbers or words that a key takes; for a list, each of its elements.
struct Allowed {
  double least = -std::numeric_limits<double>::infinity();
  double most = std::numeric_limits<double>::infinity();
  bool above_least = false;        ///< `least` itself is not allowed
  std::vector<std::string> words;  ///< the texts that are allowed; empty: any text
  bool below_most = false;         ///< `most` itself is not allowed
};

/// A condition of a key. It returns the reason why setting the key is wrong in a job; empty where
/// it is right.
using Requirement = std::string (*)(const JobConfig&);

/// One key of a job file: everything that parsing, printing and documentation know about it.
struct ConfigKey {
  std::string section;
  std::string name;
  std::string doc;  ///< one sentence without a full stop, units included
  Allowed allowed;
  std::function<Place(JobConfig&)> place;
  std::vector<Requirement> only_with{};  ///< conditions under which the key has an effect

  std::string path() const { return section + "." + name; }
};

/// Returns all keys in the order of the job file; keys of one section stand together.
std::span<const ConfigKey> all_keys();
/// Returns null when there is no key of that name.
const ConfigKey* find_key(const std::string& section, const std::string& name);
/// Returns the sections in the order of the job file.
std::vector<std::string> section_names();

/// Returns the allowed values in words: "a whole number from 1 to 64", "one of \"adamw\", \"sgd\"",
/// "true or false".
std::string describe_allowed(const ConfigKey& key);
/// Returns the key's value in `config` as TOML; empty when it is optional and not set.
std::string value_text(const ConfigKey& key, const JobConfig& config);

}  // namespace shoal::train
