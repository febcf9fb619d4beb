#include "shoal/train/config/job_file.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <toml++/toml.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <map>
#include <sstream>
#include <type_traits>

#include "shoal/base/check.h"
#include "shoal/base/file.h"
#include "shoal/base/nearest.h"
#include "shoal/base/system_error.h"
#include "shoal/train/config/keys.h"
#include "shoal/train/config/toml_text.h"

namespace shoal::train {
namespace {

Error config_error(const std::string& what) { return Error(ErrorKind::kConfig, "job", what); }

/// Groups of keys of which a job sets one. A key that is set on the command line replaces another
/// one of its group that the file sets.
const std::vector<std::vector<std::string>> kAlternatives = {
    {"training.steps", "training.tokens", "training.epochs"},
    {"training.global_batch_sequences", "training.global_batch_tokens"}};

/// One value that is about to be assigned: its key, and the line it came from.
struct Incoming {
  const ConfigKey& key;
  std::string origin;

  [[noreturn]] void reject(const std::string& shown, const std::string& why,
                           const std::string& hint = {}) const {
    Error error = config_error(fmt::format("{}: {} = {}: {}", origin, key.path(), shown, why));
    if (!hint.empty()) error.hint(hint);
    throw error;
  }
  [[noreturn]] void reject_type(const toml::node& node) const {
    if (const auto* text = node.as_string())
      reject(toml_text(text->get()), fmt::format("must be {}", describe_allowed(key)));
    std::ostringstream shown;
    node.visit([&](const auto& value) { shown << toml::node_view<const toml::node>(value); });
    reject(shown.str(), fmt::format("must be {}", describe_allowed(key)));
  }
  void check_number(double value, const std::string& shown) const {
    const Allowed& allowed = key.allowed;
    const bool holds = std::isfinite(value) &&
                       (allowed.above_least ? value > allowed.least : value >= allowed.least) &&
                       (allowed.below_most ? value < allowed.most : value <= allowed.most);
    if (!holds) reject(shown, fmt::format("must be {}", describe_allowed(key)));
  }
  void check_text(const std::string& value) const {
    const auto& words = key.allowed.words;
    if (words.empty() || std::find(words.begin(), words.end(), value) != words.end()) return;
    const std::string near = nearest(value, words);
    reject(toml_text(value), fmt::format("must be {}", describe_allowed(key)),
           near.empty() ? "" : fmt::format("did you mean \"{}\"?", near));
  }

  void read(const toml::node& node, bool& value) const {
    const auto* found = node.as_boolean();
    if (!found) reject_type(node);
    value = found->get();
  }
  void read(const toml::node& node, std::int64_t& value) const {
    const auto* found = node.as_integer();
    if (!found) reject_type(node);
    check_number(static_cast<double>(found->get()), toml_text(std::int64_t{found->get()}));
    value = found->get();
  }
  void read(const toml::node& node, double& value) const {
    const auto found = node.is_number() ? node.value<double>() : std::nullopt;
    if (!found) reject_type(node);
    check_number(*found, toml_text(*found));
    value = *found;
  }
  void read(const toml::node& node, std::string& value) const {
    const auto* found = node.as_string();
    if (!found) reject_type(node);
    check_text(found->get());
    value = found->get();
  }
  void read(const toml::node& node, const ChoicePlace& choice) const {
    std::string name;
    read(node, name);
    choice.set(name);
  }
  template <class T>
  void read(const toml::node& node, std::vector<T>& values) const {
    const auto* list = node.as_array();
    if (!list) reject_type(node);
    // Read whole before it is assigned: a list with a mistake changes nothing.
    std::vector<T> read_values;
    for (const toml::node& element : *list) {
      T value{};
      read(element, value);
      read_values.push_back(std::move(value));
    }
    values = std::move(read_values);
  }
  template <class T>
  void read(const toml::node& node, std::optional<T>& value) const {
    T read_value{};
    read(node, read_value);
    value = std::move(read_value);
  }
};

void assign(Job& job, const ConfigKey& key, const std::string& origin, const toml::node& node) {
  const Incoming incoming{key, origin};
  const auto read = [&]<class T>(const T& place) {
    if constexpr (std::is_pointer_v<T>) {
      incoming.read(node, *place);
    } else {
      incoming.read(node, place);
    }
  };
  // The key knows the member that holds it, and the member's type decides how the value is read.
  std::visit(read, key.place(job.config));
  // Where a value came from stands in every later error about it.
  job.origins[key.path()] = origin;
}

std::vector<std::string> names_in(const std::string& section) {
  std::vector<std::string> names;
  for (const ConfigKey& key : all_keys())
    if (key.section == section) names.push_back(key.name);
  return names;
}

[[noreturn]] void reject_section(const std::string& origin, const std::string& section) {
  const auto names = section_names();
  const std::string near = nearest(section, names);
  Error error = config_error(fmt::format("{}: [{}]: no such section; there are {}", origin, section,
                                         fmt::join(names, ", ")));
  std::string owner;
  for (const ConfigKey& key : all_keys()) {
    if (key.name == section)
      owner += (owner.empty() ? "" : ", ") + fmt::format("[{}]", key.section);
  }
  if (!near.empty()) error.hint(fmt::format("did you mean [{}]?", near));
  if (near.empty() && !owner.empty())
    error.hint(fmt::format("\"{}\" is a key of {}", section, owner));
  throw error;
}

/// Returns the key of `names` that other programs call `name`, or whose words begin with its
/// letters ("lr": learning_rate); empty: none.
std::string known_otherwise(const std::string& name, const std::vector<std::string>& names) {
  static const std::map<std::string, std::string> kOtherNames = {
      {"batch_size", "global_batch_sequences"},
      {"max_steps", "steps"},
      {"seq_len", "sequence_length"},
      {"block_size", "sequence_length"},
      {"grad_clip", "clip_norm"},
      {"max_grad_norm", "clip_norm"},
      {"num_epochs", "epochs"},
      {"world_size", "ranks"}};
  const auto other = kOtherNames.find(name);
  for (const std::string& key : names) {
    if (other != kOtherNames.end() && key == other->second) return key;
    std::string initials(1, key.front());
    for (std::size_t i = 1; i < key.size(); ++i)
      if (key[i - 1] == '_') initials += key[i];
    if (initials.size() > 1 && initials == name) return key;
  }
  return "";
}

[[noreturn]] void reject_key(const std::string& origin, const std::string& section,
                             const std::string& name) {
  const auto names = names_in(section);
  std::string near = known_otherwise(name, names);
  if (near.empty()) near = nearest(name, names);
  std::vector<std::string> elsewhere;
  for (const ConfigKey& key : all_keys())
    if (key.name == name) elsewhere.push_back(fmt::format("[{}]", key.section));
  Error error = config_error(fmt::format("{}: {}.{}: no such key; [{}] has {}", origin, section,
                                         name, section, fmt::join(names, ", ")));
  if (!elsewhere.empty()) {
    error.hint(fmt::format("\"{}\" is a key of {}", name, fmt::join(elsewhere, ", ")));
  } else if (!near.empty()) {
    error.hint(fmt::format("did you mean \"{}\"?", near));
  }
  throw error;
}

const ConfigKey& known_key(const std::string& origin, const std::string& section,
                           const std::string& name) {
  const auto sections = section_names();
  if (std::find(sections.begin(), sections.end(), section) == sections.end())
    reject_section(origin, section);
  const ConfigKey* key = find_key(section, name);
  if (!key) reject_key(origin, section, name);
  return *key;
}

void read_file(Job& job, std::string_view text) {
  const auto place = [&](const toml::source_region& source) {
    return fmt::format("{}:{}", job.file, source.begin.line);
  };
  toml::table table;
  try {
    table = toml::parse(text, job.file);
  } catch (const toml::parse_error& error) {
    throw config_error(fmt::format("{}: not TOML: {}", place(error.source()), error.description()));
  }
  // Sections, then keys; an unknown name is an error with the nearest known one, never ignored.
  for (auto&& [section, node] : table) {
    const std::string name(section.str());
    const auto names = section_names();
    if (std::find(names.begin(), names.end(), name) == names.end())
      reject_section(place(section.source()), name);
    const toml::table* entries = node.as_table();
    if (!entries) {
      throw config_error(fmt::format("{}: {}: must be a section, [{}] and its keys below it",
                                     place(section.source()), name, name));
    }
    for (auto&& [entry, value] : *entries) {
      const std::string origin = place(entry.source());
      assign(job, known_key(origin, name, std::string(entry.str())), origin, value);
    }
  }
}

bool takes_text(const ConfigKey& key) {
  JobConfig defaults;
  const Place place = key.place(defaults);
  return std::holds_alternative<std::string*>(place) ||
         std::holds_alternative<std::optional<std::string>*>(place) ||
         std::holds_alternative<ChoicePlace>(place);
}

void unset(Job& job, const std::string& path) {
  const auto dot = path.find('.');
  std::visit(
      [](const auto& place) {
        // The keys of these groups are optional ones.
        if constexpr (requires { place->reset(); }) place->reset();
      },
      find_key(path.substr(0, dot), path.substr(dot + 1))->place(job.config));
  job.origins.erase(path);
}

/// A key of the command line replaces the key of the file that says the same in other units.
void displace(Job& job, const std::string& set) {
  for (const auto& group : kAlternatives) {
    if (std::find(group.begin(), group.end(), set) == group.end()) continue;
    for (const std::string& other : group) {
      // Two of a group from the same place contradict each other: validate() refuses that.
      if (other != set && job.origins.contains(other) && job.origin(other) != job.origin(set))
        unset(job, other);
    }
  }
}

void apply_set(Job& job, const std::string& set) {
  const auto equals = set.find('=');
  const auto dot = set.find('.');
  SHOAL_USER_CHECK(equals != std::string::npos && dot < equals, "command line",
                   "--set {}: must read section.key=value", set);
  set_key(job, set.substr(0, equals), set.substr(equals + 1));
}

}  // namespace

std::string Job::origin(const std::string& key) const {
  const auto found = origins.find(key);
  return found == origins.end() ? "default" : found->second;
}

Job parse_job(std::string_view text, const std::string& file,
              const std::vector<std::string>& sets) {
  Job job;
  job.file = file;
  read_file(job, text);
  for (const std::string& set : sets) apply_set(job, set);
  return job;
}

Job load_job(const std::string& path, const std::vector<std::string>& sets) {
  std::error_code unknown;
  if (std::filesystem::is_directory(path, unknown)) {
    throw Error(ErrorKind::kInputMissing, "job",
                fmt::format("{} is a folder and no job file", path));
  }
  const auto text = read_text(path);
  if (!text) {
    throw system_error(ErrorKind::kInputMissing, "job",
                       fmt::format("cannot read the job file {}", path));
  }
  return parse_job(*text, path, sets);
}

void set_key(Job& job, const std::string& path, const std::string& value,
             const std::string& origin) {
  const auto dot = path.find('.');
  SHOAL_USER_CHECK(dot != std::string::npos, "command line", "{}: must read section.key", path);
  const auto section = path.substr(0, dot);
  const auto name = path.substr(dot + 1);
  const ConfigKey& key = known_key(origin, section, name);
  // A value of the command line is read as TOML, so that lists and numbers look as in a file.
  toml::table parsed;
  bool readable = true;
  try {
    parsed = toml::parse("value = " + value);
  } catch (const toml::parse_error&) {
    readable = false;
  }
  const toml::node* node = readable && parsed.size() == 1 ? parsed.get("value") : nullptr;
  // On the command line a text needs no quotes.
  if (takes_text(key) && (!node || !node->is_string())) {
    assign(job, key, origin, toml::value<std::string>(value));
  } else if (node) {
    assign(job, key, origin, *node);
  } else {
    throw config_error(
        fmt::format("{}: {} = {}: must be {}", origin, key.path(), value, describe_allowed(key)));
  }
  displace(job, key.path());
}

Error config_error(const Job& job, const std::string& path, const std::string& what) {
  const auto dot = path.find('.');
  const ConfigKey* key = find_key(path.substr(0, dot), path.substr(dot + 1));
  SHOAL_CHECK(key, "no key {}", path);
  // The error shows where the value came from, which may be the file, the command line, a launcher
  // or a default.
  const std::string value = value_text(*key, job.config);
  const std::string origin = job.origin(path);
  const std::string where = origin == "default" ? job.file + ": " : origin + ": ";
  return config_error(fmt::format("{}{}{}{}: {}", where, path,
                                  value.empty() ? " (not set)" : " = " + value,
                                  origin == "default" && !value.empty() ? " (default)" : "", what));
}

}  // namespace shoal::train
