#include "apps/shoal/plan/contradictions.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <initializer_list>
#include <string>

#include "shoal/base/error.h"

namespace shoal::apps {
namespace {

/// The options that were given to a command.
class Given {
 public:
  explicit Given(const CLI::App& command) : command_(command) {}

  bool operator()(const char* option) const { return command_.get_option(option)->count() > 0; }
  bool any(std::initializer_list<const char*> options) const {
    return std::any_of(options.begin(), options.end(),
                       [&](const char* option) { return (*this)(option); });
  }
  void none_of(std::initializer_list<const char*> options, const std::string& rule) const {
    for (const char* option : options)
      if ((*this)(option)) reject(fmt::format("{}: {}", option, rule));
  }
  void none_but(std::initializer_list<const char*> allowed, const std::string& rule) const {
    for (const CLI::Option* option : command_.get_options()) {
      const std::string name = option->get_name();
      const bool known =
          std::any_of(allowed.begin(), allowed.end(), [&](const char* one) { return name == one; });
      if (option->count() > 0 && !known) reject(fmt::format("{}: {}", name, rule));
    }
  }

 private:
  const CLI::App& command_;
};

}  // namespace

// An option that is accepted and changes nothing would answer another question than the one that
// was asked.
void reject_options_without_effect(const CLI::App& command, const PlanOptions& options) {
  const Given given(command);
  if (given("--parameters")) {
    return given.none_but({"--parameters", "--devices", "--dp", "--tp", "--pp", "--zero",
                           "--precision", "--optimizer", "--cluster", "--json"},
                          "means nothing beside --parameters, a number without a model");
  }
  if (given("--recipe")) {
    return given.none_but({"--recipe", "--tp", "--set"},
                          "means nothing beside --recipe, which divides modules along tp");
  }
  if (is_mesh_alone(options)) {
    return given.none_but(
        {"--mesh", "--devices", "--dp", "--tp", "--pp", "--cp", "--ep", "--shard", "--cluster"},
        "belongs to a model, and --mesh has none: name a --model");
  }
  if (given("--model")) {
    given.none_of({"--layers", "--hidden", "--heads", "--kv-heads", "--ffn", "--vocab", "--experts",
                   "--experts-per-token", "--gated", "--untied"},
                  fmt::format("belongs to a shape, and --model {} has its own", options.model));
  }
  if (!given("--experts")) given.none_of({"--experts-per-token"}, "needs --experts");
  if (!is_job(options)) given.none_of({"--set"}, "sets a key of a job file, and there is none");
  if (options.search) {
    given.none_of(
        {"--mesh", "--gathers", "--trace", "--svg", "--schedule-file", "--straggler", "--failures"},
        "is of one mesh: plan the one that --search finds");
    if (given("--schedules"))
      given.none_of({"--schedule"}, "--schedules names those to search among");
    if (given("--precisions"))
      given.none_of({"--precision"}, "--precisions names those to search among");
  } else {
    given.none_of({"--count", "--precisions", "--schedules"}, "needs --search");
  }
  if (given("--schedule-file"))
    given.none_of({"--schedule", "--vpp"}, "the schedule is that of --schedule-file");
  if (!given.any({"--tokens", "--hours", "--money"})) {
    given.none_of({"--bytes-per-token", "--failures"},
                  "name the run: --tokens, --hours or --money");
  }
}

void reject_options_beside_subcommand(const CLI::App& command) {
  Given(command).none_but({},
                          fmt::format("means nothing beside \"{}\": options of it stand behind it",
                                      command.get_subcommands().front()->get_name()));
}

void reject_options_without_effect(const PlanOptions& options, const model::ModelSpec& spec,
                                   const plan::Training& training) {
  const auto need = [](bool holds, const std::string& option, const std::string& rule) {
    if (!holds) reject(fmt::format("--{}: {}", option, rule));
  };
  if (options.shard != 0)
    need(training.zero_stage >= 1, "shard",
         fmt::format("ZeRO {} shards nothing", training.zero_stage));
  if (options.keep_gathered) {
    need(training.zero_stage == 3, "keep-gathered",
         fmt::format("ZeRO {} gathers no parameters", training.zero_stage));
  }
  if (options.prefetch >= 0) {
    need(training.zero_stage == 3, "prefetch",
         fmt::format("ZeRO {} gathers no parameters", training.zero_stage));
  }
  if (options.reduce_every_micro_batch) {
    need(training.zero_stage <= 1 || is_job(options), "reduce-every-micro-batch",
         "stages 2 and 3 reduce gradients in every micro-batch as they are");
  }
  if (options.vpp > 1) need(training.degrees.pp > 1, "vpp", "a pipeline of one rank has one stage");
  if (options.ulysses)
    need(training.degrees.cp > 1, "ulysses", "is an exchange between context ranks, and cp = 1");
  if (options.expert_imbalance != 1)
    need(spec.experts > 0, "expert-imbalance", "the model has no experts");
}

}  // namespace shoal::apps
