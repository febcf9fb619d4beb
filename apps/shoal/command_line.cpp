#include "apps/shoal/command_line.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <iostream>
#include <system_error>

#include "apps/shoal/command.h"
#include "apps/shoal/command_line_error.h"
#include "apps/shoal/exit_code.h"
#include "apps/shoal/rank_process.h"
#include "apps/shoal/watch/commands.h"
#include "shoal/base/instruction_sets.h"
#include "shoal/base/system_error.h"

namespace shoal::apps {
namespace {

/// Flushes standard output: a full disk behind it is an error like any other. Returns the exit
/// code.
int flush_output(int code) {
  if (std::cout.flush() && std::fflush(stdout) == 0 && std::ferror(stdout) == 0) return code;
  const Error error = system_error(ErrorKind::kOutput, "output", "cannot write to standard output");
  fmt::print(stderr, "shoal: {}\n", error.what());
  return exit_code(error.kind());
}

}  // namespace

int run_command_line(int argc, char** argv) {
  CLI::App program("Shoal trains neural networks on many processes and machines.", "shoal");
  program.set_version_flag("--version", fmt::format("shoal {}", version()));
  program.require_subcommand(1);
  int exit_code = 0;
  add_train_command(program, exit_code);
  add_replay_command(program, exit_code);
  add_token_command(program);
  add_generate_command(program, exit_code);
  add_eval_command(program, exit_code);
  add_data_command(program);
  add_bench_command(program, exit_code);
  add_ckpt_command(program, exit_code);
  add_plan_command(program);
  add_profile_command(program);
  add_plot_command(program);
  add_status_command(program);
  add_top_command(program);
  add_steer_commands(program, exit_code);
  add_env_command(program);
  add_rank_command(program, exit_code);
  try {
    // Before anything computes: libraries ask for their limits at their first use. Ranks inherit
    // the variable.
    if (const char* limit = std::getenv("SHOAL_CPU")) limit_instruction_sets(limit);
    ask_for_repeatable_products();
    program.parse(argc, argv);
    // A failure keeps its own code; only a success can turn out to have written nothing.
    return exit_code == 0 ? flush_output(0) : exit_code;
  } catch (const CLI::ParseError& error) {
    // Help and versions come as errors too, of code 0.
    if (error.get_exit_code() == 0) return program.exit(error) == 0 ? flush_output(0) : 2;
    fmt::print(stderr, "shoal: {}\nRun with --help for more information.\n",
               describe_command_line_error(program, error));
    return 2;
  } catch (const std::exception& error) {
    if (const auto* system = dynamic_cast<const std::system_error*>(&error);
        system && std::ferror(stdout)) {  // fmt could not write
      errno = system->code().value();
      return flush_output(0);
    }
    const auto ending = ending_of(error);
    std::fflush(stdout);
    fmt::print(stderr, "shoal: {}\n", ending.text);
    return ending.code;
  }
}

}  // namespace shoal::apps
