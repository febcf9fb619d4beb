#pragma once

#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "shoal/base/error.h"
#include "shoal/train/config/job_config.h"

namespace shoal::train {

/// Origins of the values that are not defaults: "optimizer.name" -> "job.toml:12" or "command
/// line".
using Origins = std::map<std::string, std::string>;

/// A job as it was read: its values and the origin of each.
struct Job {
  JobConfig config;
  Origins origins;
  std::string file;  ///< the name by which the user gave it

  /// Returns "job.toml:12", "command line" or "default".
  std::string origin(const std::string& key) const;
};

/// Reads a job file and applies `sets`, each "section.key=value" with the value in TOML (quotes
/// around one word may be left out); where a job takes one of several keys (steps, tokens, epochs;
/// global_batch_sequences, _tokens), one that is set here displaces the file's. Throws
/// Error(config) that names file, line and key, what is allowed and the nearest name that exists:
/// for unknown sections and keys, values of the wrong type or out of range. Throws Error(input
/// missing) when there is no such file. Rules that join several keys are checked by `validate`.
Job load_job(const std::string& path, const std::vector<std::string>& sets = {});
/// Parses the text of a job file; `file` is named in errors.
Job parse_job(std::string_view text, const std::string& file,
              const std::vector<std::string>& sets = {});

/// Sets one key as if it had stood on the command line, or where `origin` says; `value` in TOML.
void set_key(Job& job, const std::string& key, const std::string& value,
             const std::string& origin = "command line");

/// Returns an error about the value of `key`: `[job] file:line: key = value: what`.
Error config_error(const Job& job, const std::string& key, const std::string& what);

/// Writes every key that has a value, as a job file that parses to the same values.
std::string to_toml(const JobConfig& config);
/// Returns what --print-config prints: to_toml with the origin of each value as a comment, and
/// unset optional keys as comments.
std::string print_config(const Job& job);
/// Writes docs/reference/job.md: sections, keys, types and ranges, defaults, meaning.
std::string config_reference();

}  // namespace shoal::train
