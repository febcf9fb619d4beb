#pragma once

#include <CLI/CLI.hpp>

namespace shoal::apps {

/// `shoal plan calibrate`: measures products, memory and all-reduce on this machine, with as many ranks at work as a job will have, and writes a
/// cluster file for `shoal plan --cluster`.
void add_calibrate_command(CLI::App& plan_command);

}  // namespace shoal::apps
