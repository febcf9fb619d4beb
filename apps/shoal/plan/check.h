#pragma once

#include <CLI/CLI.hpp>

namespace shoal::apps {

/// `shoal plan check JOB.toml`: trains a few steps and lays what was measured beside what was
/// planned.
void add_check_command(CLI::App& plan_command);

}  // namespace shoal::apps
