#pragma once

#include <CLI/CLI.hpp>

#include "apps/shoal/plan/options.h"

namespace shoal::apps {

/// `shoal plan --parameters N`: prints the bytes of the model states of so many parameters. Throws
/// Error(usage) for options that make no sense.
void print_model_states(const PlanOptions& options);
/// `shoal plan --search`: prints the fastest meshes, and what would make another one the fastest.
void run_search(const PlanOptions& options);

// The subcommands of `shoal plan`.

/// `shoal plan scaling`: the compute-optimal size and tokens of a budget, by published laws.
void add_scaling_command(CLI::App& plan_command);
/// `shoal plan inference`: what serving a model costs on one device.
void add_inference_command(CLI::App& plan_command);
/// `shoal plan learn ...`: calculators that print one line each, formula and all.
void add_learn_command(CLI::App& plan_command);
/// `shoal plan collective`: simulates the step table of an all-reduce over a link, with slower
/// ranks.
void add_collective_command(CLI::App& plan_command);
/// `shoal plan calibrate`: measures matmuls, memory and all-reduce on this machine, with as many
/// ranks at work as a job will have, and writes a cluster file for `shoal plan --cluster`.
void add_calibrate_command(CLI::App& plan_command);
/// `shoal plan drift`: how much longer this machine takes now than when a cluster file was written.
void add_drift_command(CLI::App& plan_command);
/// `shoal plan check JOB.toml`: trains a few steps and compares memory and step time with the plan.
void add_check_command(CLI::App& plan_command);

}  // namespace shoal::apps
