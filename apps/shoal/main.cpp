#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <cstdio>

#include "apps/shoal/bench.h"
#include "apps/shoal/ckpt.h"
#include "apps/shoal/command.h"
#include "apps/shoal/data.h"
#include "apps/shoal/exit_code.h"
#include "apps/shoal/plan.h"
#include "apps/shoal/rank_process.h"
#include "apps/shoal/version.h"

int main(int count, char** words) {
  CLI::App program("Shoal trains neural networks on many devices.", "shoal");
  program.set_version_flag("--version", fmt::format("shoal {}", shoal::apps::version()));
  program.require_subcommand(1);
  int exit_code = 0;
  shoal::apps::add_train_command(program, exit_code);
  shoal::apps::add_generate_command(program, exit_code);
  shoal::apps::add_eval_command(program, exit_code);
  shoal::apps::add_data_command(program);
  shoal::apps::add_bench_command(program, exit_code);
  shoal::apps::add_ckpt_command(program, exit_code);
  shoal::apps::add_plan_command(program);
  shoal::apps::add_env_command(program);
  shoal::apps::add_rank_command(program, exit_code);
  try {
    program.parse(count, words);
    return exit_code;
  } catch (const CLI::ParseError& error) {
    return program.exit(error) == 0 ? 0 : 2;
  } catch (const std::exception& error) {
    const auto ending = shoal::apps::ending_of(error);
    std::fflush(stdout);
    fmt::print(stderr, "shoal: {}\n", ending.text);
    return ending.code;
  }
}
