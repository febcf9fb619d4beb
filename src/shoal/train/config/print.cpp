#include <fmt/format.h>

#include <algorithm>

#include "shoal/train/config/job_file.h"
#include "shoal/train/config/keys.h"
#include "shoal/train/config/validate.h"

namespace shoal::train {
namespace {

/// Comments begin in this column, or behind a longer line.
constexpr std::size_t kCommentColumn = 44;

}  // namespace

// Every key with its value: ranks are started with it, and checkpoints keep it, so that neither
// depends on defaults.
std::string to_toml(const JobConfig& config) {
  std::string text;
  std::string section;
  for (const ConfigKey& key : all_keys()) {
    const std::string value = value_text(key, config);
    if (value.empty()) continue;
    if (key.section != section) {
      text += fmt::format("{}[{}]\n", section.empty() ? "" : "\n", key.section),
          section = key.section;
    }
    text += fmt::format("{} = {}\n", key.name, value);
  }
  return text;
}

std::string belonging_toml(const Job& job, int ranks) {
  const JobConfig defaults;
  const auto belongs = [&](const ConfigKey& key, bool one_host) {
    try {
      // As if this key alone had been set: validate() refuses a set key that has no effect.
      validate({job.config, {{key.path(), job.file}}, job.file}, ranks, one_host);
      return true;
    } catch (const Error&) {
      return false;
    }
  };
  std::string text;
  std::string section;
  for (const ConfigKey& key : all_keys()) {
    const std::string value = value_text(key, job.config);
    const bool is_default = value == value_text(key, defaults);
    const bool says_nothing = value.empty() || value == "\"\"" || value == "[]";
    // It is not known here on how many hosts the ranks run. Keys of TCP between hosts are left out
    // as defaults, and kept when they were set.
    if ((is_default && says_nothing) ||
        !(belongs(key, true) || (!is_default && belongs(key, false))))
      continue;
    if (key.section != section) {
      text += fmt::format("{}[{}]\n", section.empty() ? "" : "\n", key.section),
          section = key.section;
    }
    text += fmt::format("{} = {}\n", key.name, value);
  }
  return text;
}

std::string print_config(const Job& job) {
  std::string text;
  std::string section;
  for (const ConfigKey& key : all_keys()) {
    if (key.section != section) {
      text += fmt::format("{}[{}]\n", section.empty() ? "" : "\n", key.section),
          section = key.section;
    }
    const std::string value = value_text(key, job.config);
    const std::string line =
        value.empty() ? fmt::format("# {}", key.name) : fmt::format("{} = {}", key.name, value);
    text += fmt::format("{:<{}}  # {}\n", line, kCommentColumn,
                        value.empty() ? "not set" : job.origin(key.path()));
  }
  return text;
}

std::string config_reference() {
  const JobConfig defaults;
  std::string text =
      "# The job file\n\nWhat `shoal train --help-config` prints: every key, what it takes, and "
      "its value when it is left out. A job file is TOML: "
      "sections and their\nkeys. `--set section.key=value` overrides one key (of steps, tokens and "
      "epochs, and of the two global batches, the one "
      "set last counts), `--print-config` shows every value and where it came from. Unknown "
      "keys, values that a key "
      "does\nnot take, and combinations that make no sense are refused with file and line before "
      "anything starts.\n";
  std::string section;
  for (const ConfigKey& key : all_keys()) {
    if (key.section != section) {
      text += fmt::format("\n## [{}]\n\n| key | value | default | meaning |\n|---|---|---|---|\n",
                          key.section);
      section = key.section;
    }
    const std::string value = value_text(key, defaults);
    text += fmt::format("| `{}` | {} | {} | {} |\n", key.name, describe_allowed(key),
                        value.empty() ? "not set" : "`" + value + "`", key.doc);
  }
  return text;
}

}  // namespace shoal::train
