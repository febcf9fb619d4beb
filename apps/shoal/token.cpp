#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <chrono>
#include <memory>
#include <string>

#include "apps/shoal/command.h"
#include "shoal/base/duration.h"
#include "shoal/base/hex.h"
#include "shoal/wire/join_token.h"
#include "shoal/wire/secret_file.h"

namespace shoal::apps {
namespace {

struct TokenOptions {
  std::string secret_file;
  std::string cluster;
  double good_for_s = 3600;
};

std::string secret_in(const std::string& file) {
  return wire::read_secret(file, "the issuer's secret",
                           "head -c 32 /dev/urandom | base64 > issuer, kept by who issues tokens");
}

void add_secret(CLI::App* command, TokenOptions& options) {
  command
      ->add_option("secret", options.secret_file,
                   "A file with the issuer's secret: any text that nobody can guess")
      ->required();
}

}  // namespace

void add_token_command(CLI::App& program) {
  auto options = std::make_shared<TokenOptions>();
  CLI::App* command = program.add_subcommand(
      "token", "Make tokens, each of which lets one process join an elastic group, once");
  command->require_subcommand(1);
  CLI::App* key = command->add_subcommand(
      "key", "Print the key by which members read tokens (elastic.token_key): no secret");
  add_secret(key, *options);
  key->callback(
      [options] { fmt::print("{}\n", hex(wire::token_key(secret_in(options->secret_file)))); });
  CLI::App* issue = command->add_subcommand(
      "issue", "Print a token, for a file that a process joins with (shoal train --token)");
  add_secret(issue, *options);
  issue->add_option("--cluster", options->cluster, "The name of the job to join (job.name)")
      ->required();
  issue
      ->add_option("--good-for", options->good_for_s,
                   "Seconds until it expires, by the clocks of the members")
      ->check(CLI::Range(1.0, 1e9))
      ->capture_default_str();
  issue->callback([options] {
    const auto expires = std::chrono::system_clock::now() +
                         std::chrono::duration_cast<std::chrono::system_clock::duration>(
                             from_seconds(options->good_for_s));
    fmt::print("{}\n",
               wire::issue_join_token(secret_in(options->secret_file), options->cluster, expires));
  });
}

}  // namespace shoal::apps
