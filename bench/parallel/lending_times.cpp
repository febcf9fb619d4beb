// Compares two ways in which ranks that share memory exchange tensors: each copies what it needs
// from where it lies (Group::lend), or they pack, stage and unpack it. It does so for exchanged
// heads of context parallelism and rows of divided experts. Two models of the same values, one a
// way, take turns at forward and backward passes in one run. Each line says the median of the ratio
// of times and its quartiles, the time of one exchange alone, there and back, and the peak of all
// ranks' memory.
//
//   build/release/bin/lending_times heads --tokens 1024
//   build/release/bin/lending_times experts --tokens 512
//
//   build/release/bin/lending_times streams --tokens 256
//
// The last one measures what is not lent: a gather and a reduce-scatter of the stream of
// tensor-parallel ranks, and a message of a pipeline.
#include <ATen/Parallel.h>
#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <fmt/format.h>
#include <sys/wait.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "shoal/base/clock.h"
#include "shoal/comm/allocator.h"
#include "shoal/comm/world.h"
#include "shoal/parallel/batch_share.h"
#include "shoal/parallel/context/context_parallel.h"
#include "shoal/parallel/expert/dispatch.h"
#include "shoal/parallel/expert/expert_parallel.h"
#include "shoal/parallel/redistribute.h"
#include "tests/support/without_shared_memory.h"

namespace shoal::bench {
namespace {

using mesh::Placement;

struct Choice {
  std::string what;
  std::int64_t tokens = 1024;
  int ranks = 2;
  int pairs = 40;
};

constexpr std::int64_t kHidden = 384;
constexpr std::int64_t kStream = 768;

/// A Llama of six layers, or a mixture of four with eight experts, of which a token visits two.
model::ModelSpec spec_of(const Choice& choice) {
  model::ModelSpec spec = *model::named_model(choice.what == "experts" ? "moe-tiny" : "llama-tiny");
  spec.layers = choice.what == "experts" ? 4 : 6;
  spec.hidden = kHidden;
  spec.heads = spec.kv_heads = 6;
  spec.head_size = 64;
  spec.ffn = choice.what == "experts" ? 512 : 1024;
  if (choice.what == "experts") spec.experts = 8;
  spec.vocab = 512;
  spec.sequence = choice.tokens;
  return spec;
}

/// Returns the seconds of one call between two meetings of all ranks.
double seconds_of(const comm::Group& world, const std::function<void()>& call) {
  world.barrier();
  const auto begin = Clock::now();
  call();
  world.barrier();
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

double quantile(std::vector<double> values, double q) {
  std::sort(values.begin(), values.end());
  return values[static_cast<std::size_t>(q * static_cast<double>(values.size() - 1) + 0.5)];
}

/// Two ways of one thing that take turns: the times of each, and of each pair their ratio.
struct Times {
  std::vector<double> lent, copied, ratio;

  std::string text() const {
    return fmt::format("{:.4g} ms lent, {:.4g} ms copied, ratio {:.3f} ({:.3f} to {:.3f})",
                       1e3 * quantile(lent, 0.5), 1e3 * quantile(copied, 0.5), quantile(ratio, 0.5),
                       quantile(ratio, 0.25), quantile(ratio, 0.75));
  }
};

Times in_turn(const comm::Group& world, int pairs, const std::function<void()>& lent,
              const std::function<void()>& copied) {
  Times times;
  for (int pair = -2; pair < pairs; ++pair) {
    const bool lent_first = pair % 2 == 0;
    const double first = seconds_of(world, lent_first ? lent : copied);
    const double second = seconds_of(world, lent_first ? copied : lent);
    if (pair < 0) continue;
    times.lent.push_back(lent_first ? first : second);
    times.copied.push_back(lent_first ? second : first);
    times.ratio.push_back(times.lent.back() / times.copied.back());
  }
  return times;
}

/// Returns the most that the tensors of all ranks take during one call.
double peak_megabytes(const comm::Group& world, const std::function<void()>& call) {
  world.barrier();
  comm::installed_arena()->reset_peaks();
  const auto before = static_cast<double>(comm::installed_arena()->ledger().total.in_use);
  call();
  return world.sum(static_cast<double>(comm::installed_arena()->ledger().total.peak) - before) /
         1e6;
}

/// A model that a group divides, with its pass over tokens of its own.
class Divided {
 public:
  Divided(const Choice& choice, const comm::Group& group)
      : experts_(choice.what == "experts"),
        tokens_(choice.tokens),
        mesh_(group, experts_ ? plan::Degrees{.dp_shard = group.size(), .ep = group.size()}
                              : plan::Degrees{.cp = group.size()}),
        model_(nn::make_model(spec_of(choice))) {
    if (experts_) {
      parallel::place_experts(*model_, mesh_);
    } else {
      parallel::split_sequence(*model_, mesh_, parallel::ContextMethod::kHeads);
    }
    model_->materialize(at::kFloat);
    model_->reset_parameters(Key(1));
  }

  void pass() const {
    nn::Context context;
    context.key = Key(2);
    context.samples = at::arange(1, at::kLong);
    const at::Tensor all =
        (at::arange(tokens_, at::kLong) * 17 + 5 * mesh_.rank() * (experts_ ? 1 : 0))
            .remainder(509)
            .view({1, tokens_});
    context.labels = all;
    context.loss_scale = 1.0 / static_cast<double>(tokens_);
    const at::Tensor inputs =
        parallel::BatchShare(mesh_, 0, parallel::ContextMethod::kHeads).cut(all, context);
    (*model_)(inputs, context).backward();
    model_->clear_gradients();
  }

 private:
  bool experts_;
  std::int64_t tokens_;
  mesh::Mesh mesh_;
  std::shared_ptr<nn::Model> model_;
};

/// One exchange there and one back, as a layer makes them, by `group`.
std::function<void()> exchange(const Choice& choice, const comm::Group& group) {
  const std::int64_t ranks = group.size();
  if (choice.what == "experts") {
    const at::Tensor rows = at::full({2 * choice.tokens, kHidden}, 1.0);
    return [=] {
      const std::vector<std::int64_t> counts(8, 2 * choice.tokens / 8);
      const auto table = parallel::exchange_counts(counts, group);
      parallel::return_from_experts(parallel::send_to_experts(rows, table, group), table, group);
    };
  }
  const at::Tensor qkv = at::full({1, choice.tokens / ranks, 3 * kHidden}, 1.0);
  const at::Tensor out = at::full({1, choice.tokens, kHidden / ranks}, 1.0);
  return [=] {
    parallel::redistribute(qkv, group, Placement::shard(1), Placement::shard(2),
                           {1, choice.tokens, 3 * kHidden});
    parallel::redistribute(out, group, Placement::shard(2), Placement::shard(1),
                           {1, choice.tokens, kHidden});
  };
}

std::string compare(const Choice& choice, const comm::Group& world) {
  const comm::Group apart = comm::without_shared_memory(world);
  const Divided lent(choice, world);
  const Divided copied(choice, apart);
  const auto pass = [](const Divided& model) { return [&model] { model.pass(); }; };
  const Times passes = in_turn(world, choice.pairs, pass(lent), pass(copied));
  const Times alone =
      in_turn(world, 5 * choice.pairs, exchange(choice, world), exchange(choice, apart));
  const double lent_peak = peak_megabytes(world, pass(lent));
  const double copied_peak = peak_megabytes(world, pass(copied));
  const double lent_alone = peak_megabytes(world, exchange(choice, world));
  const double copied_alone = peak_megabytes(world, exchange(choice, apart));
  return fmt::format(
      "{} of {} tokens on {} ranks\n  a pass     {}\n  exchanges  {}\n"
      "  peak of a pass {:.1f} MB lent, {:.1f} copied; of exchanges alone {:.2f} and {:.2f}\n",
      choice.what, choice.tokens, choice.ranks, passes.text(), alone.text(), lent_peak, copied_peak,
      lent_alone, copied_alone);
}

/// The times of what is copied, where it need not be: a stream [tokens, 768] that ranks gather, or
/// sum and scatter, and a message of as many tokens.
std::string copies(const Choice& choice, const comm::Group& world) {
  const std::vector<std::int64_t> whole{1, choice.tokens, kStream};
  const at::Tensor stream = at::full(whole, 1.0);
  const at::Tensor part = at::full({1, choice.tokens / world.size(), kStream}, 1.0);
  const at::Tensor room = at::empty(whole);
  const auto seconds = [&](const std::function<void()>& call) {
    std::vector<double> times;
    for (int i = 0; i < 10 * choice.pairs; ++i) times.push_back(seconds_of(world, call));
    return 1e6 * quantile(times, 0.5);
  };
  const double meeting = seconds([] {});
  const double gather = seconds([&] {
    parallel::redistribute(part, world, Placement::shard(1), Placement::replicate(), whole);
  });
  const double scatter = seconds([&] {
    parallel::redistribute(stream, world, Placement::partial(), Placement::shard(1), whole);
  });
  const double message = seconds([&] {
    if (world.rank() == 0) world.send(stream, 1);
    if (world.rank() == 1) world.recv(room, 0);
  });
  return fmt::format(
      "{} tokens of {} features: a gather {:.1f} us, a reduce-scatter {:.1f} us, a message {:.1f} "
      "us, a meeting {:.1f} us\n",
      choice.tokens, kStream, gather, scatter, message, meeting);
}

/// Runs one rank. Each is a process, as `shoal train` has them.
void run(const Choice& choice, const std::string& name, int rank) {
  at::set_num_threads(1);
  const comm::Group world =
      comm::connect({.name = name, .key = name, .rank = rank, .size = choice.ranks});
  const std::string text =
      choice.what == "streams" ? copies(choice, world) : compare(choice, world);
  if (rank == 0) std::fputs(text.c_str(), stdout);
  world.barrier();
}

}  // namespace
}  // namespace shoal::bench

int main(int argc, char** argv) {
  shoal::bench::Choice choice;
  CLI::App app("Exchanges of ranks that share memory, lent and copied, in turn");
  app.add_option("what", choice.what, "what ranks exchange")
      ->required()
      ->check(CLI::IsMember({"heads", "experts", "streams"}));
  app.add_option("--tokens", choice.tokens, "of a sequence; of experts, of each rank");
  app.add_option("--ranks", choice.ranks, "processes")->check(CLI::Range(2, 6));
  app.add_option("--pairs", choice.pairs, "passes of each way")->check(CLI::Range(1, 10000));
  CLI11_PARSE(app, argc, argv);
  const std::string name = fmt::format("lending-times-{}", ::getpid());
  int failed = 0;
  for (int rank = 0; rank < choice.ranks; ++rank) {
    if (::fork() > 0) continue;
    try {
      shoal::bench::run(choice, name, rank);
    } catch (const std::exception& error) {
      std::fprintf(stderr, "lending_times: rank %d: %s\n", rank, error.what());
      ::_exit(1);
    }
    std::fflush(stdout);
    ::_exit(0);
  }
  for (int rank = 0; rank < choice.ranks; ++rank) {
    int status = 0;
    ::wait(&status);
    failed += status != 0;
  }
  return failed > 0;
}
