#pragma once

namespace CLI {
class App;
}

namespace shoal::apps {

// The subcommands, one file each. A command adds itself to the program and works while the program
// parses; it throws shoal::Error, or leaves an exit code other than 0 in `exit_code`, which lives
// as long as the program.

void add_train_command(CLI::App& program, int& exit_code);
/// `shoal replay`: leaves exit code 1 where a step differs.
void add_replay_command(CLI::App& program, int& exit_code);
/// `shoal token issue | key`: what lets a process join an elastic group.
void add_token_command(CLI::App& program);
void add_generate_command(CLI::App& program, int& exit_code);
void add_eval_command(CLI::App& program, int& exit_code);
/// `shoal data prepare | peek | stats | verify`.
void add_data_command(CLI::App& program);
/// `shoal bench collectives`: starts itself anew for every rank and measures the public Group
/// calls; `shoal bench scaling`: a job on more and more ranks; `shoal bench products | memory |
/// storage`: what the planner needs to know of a machine.
void add_bench_command(CLI::App& program, int& exit_code);
/// `shoal ckpt ls | show | verify | diff | reshard | export | import`: on one process and without
/// Torch. `diff` leaves exit code 1 where something differs, as diff does.
void add_ckpt_command(CLI::App& program, int& exit_code);
/// `shoal plan`: what a model needs on a mesh, the best meshes (--search), a step simulated
/// (--trace, --svg), and the subcommands of plan/commands.h.
void add_plan_command(CLI::App& program);
void add_env_command(CLI::App& program);
/// `shoal profile`: where the steps of a trace went.
void add_profile_command(CLI::App& program);
/// `shoal plot`: the loss curves of several runs.
void add_plot_command(CLI::App& program);

/// Returns "0.1.0".
const char* version();

}  // namespace shoal::apps
