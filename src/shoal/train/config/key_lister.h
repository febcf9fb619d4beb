#pragma once

#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "shoal/train/config/keys.h"

namespace shoal::train {

// The tables of keys are written with ranges and the Lister.

constexpr double kUnbounded = std::numeric_limits<double>::infinity();

// {least, most, least itself excluded, words, most itself excluded}
inline Allowed any() { return {}; }
inline Allowed at_least(double least) { return {least, kUnbounded, false, {}}; }
inline Allowed above(double least) { return {least, kUnbounded, true, {}}; }
inline Allowed between(double least, double most) { return {least, most, false, {}}; }
inline Allowed from_to_below(double least, double most) { return {least, most, false, {}, true}; }
inline Allowed one_of(std::vector<std::string> words) {
  return {-kUnbounded, kUnbounded, false, std::move(words)};
}

/// Adds the keys of one section, each with the member that holds it.
template <class Section>
class Lister {
 public:
  Lister(std::vector<ConfigKey>& keys, std::string section, Section JobConfig::*place)
      : keys_(keys), section_(std::move(section)), place_(place) {}

  template <class T>
  Lister& key(const char* name, T Section::*member, Allowed allowed, const char* doc) {
    const auto section = place_;
    keys_.push_back(
        {section_, name, doc, std::move(allowed),
         [section, member](JobConfig& config) -> Place { return &(config.*section.*member); }});
    return *this;
  }

  /// A key that takes the names of E, or those that `allowed` lists.
  template <JobChoice E>
  Lister& key(const char* name, E Section::*member, Allowed allowed, const char* doc) {
    const auto section = place_;
    keys_.push_back(
        {section_, name, doc, std::move(allowed), [section, member](JobConfig& config) -> Place {
           return choice_place(config.*section.*member);
         }});
    return *this;
  }
  template <JobChoice E>
  Lister& key(const char* name, E Section::*member, const char* doc) {
    const auto& names = ChoiceNames<E>::names;
    return key(name, member, one_of({names.begin(), names.end()}), doc);
  }

  /// As above, for a key that need not be set.
  template <JobChoice E>
  Lister& key(const char* name, std::optional<E> Section::*member, const char* doc) {
    const auto& names = ChoiceNames<E>::names;
    const auto section = place_;
    const auto place = [section, member](JobConfig& config) -> Place {
      std::optional<E>& value = config.*section.*member;
      return ChoicePlace{
          .get = [&value] { return value ? std::string(name_of(*value)) : std::string(); },
          .set = [&value](const std::string& name) { value = find_choice<E>(name).value(); }};
    };
    keys_.push_back({section_, name, doc, one_of({names.begin(), names.end()}), place});
    return *this;
  }

  /// Conditions of the key that was added last, the most general first.
  Lister& only_with(std::vector<Requirement> requirements) {
    keys_.back().only_with = std::move(requirements);
    return *this;
  }

 private:
  template <JobChoice E>
  static Place choice_place(E& value) {
    return ChoicePlace{
        .get = [&value] { return std::string(name_of(value)); },
        .set = [&value](const std::string& name) { value = find_choice<E>(name).value(); }};
  }

  std::vector<ConfigKey>& keys_;
  std::string section_;
  Section JobConfig::*place_;
};

// The tables: each adds the keys of its sections, in the order of the job file.

void list_model_keys(std::vector<ConfigKey>& keys);        ///< job, model
void list_learning_keys(std::vector<ConfigKey>& keys);     ///< data, training, optimizer, precision
void list_parallelism_keys(std::vector<ConfigKey>& keys);  ///< parallelism
void list_low_communication_keys(std::vector<ConfigKey>& keys);
void list_elastic_keys(std::vector<ConfigKey>& keys);
void list_run_keys(std::vector<ConfigKey>& keys);  ///< activation_checkpoint to debug

}  // namespace shoal::train
