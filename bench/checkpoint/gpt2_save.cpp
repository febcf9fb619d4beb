// One rank of data-parallel GPT-2 training that saves: the state, the step and the saver of `shoal
// train`. Rank 0 prints one JSON line: the times of steps between saves and while one is written,
// what saves held training up, and how fast the disk takes a save and plain direct writes.
// bench/checkpoint_bench.py starts the ranks.
#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/zeros.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>

#include "shoal/base/check.h"
#include "shoal/base/clock.h"
#include "shoal/base/system_error.h"
#include "shoal/checkpoint/format/manifest.h"
#include "shoal/checkpoint/saver.h"
#include "shoal/comm/world.h"
#include "shoal/optim/optimizer.h"
#include "shoal/parallel/shard/sharding.h"
#include "shoal/train/job_options.h"
#include "shoal/train/step.h"
#include "shoal/train/training_state.h"

namespace shoal::bench {
namespace {

struct Choice {
  comm::WorldOptions world;
  std::string model = "gpt2-124m", directory;
  std::int64_t columns = 1024;
  int warmup = 2, steps = 2, saves = 3, idle = 3, zero = 0;
};

double milliseconds_since(Clock::time_point begin) {
  return std::chrono::duration<double, std::milli>(Clock::now() - begin).count();
}
double milliseconds(Duration time) {
  return std::chrono::duration<double, std::milli>(time).count();
}

/// Training from random weights on random tokens, as far as saving can see it.
class Run {
 public:
  explicit Run(const Choice& choice)
      : choice_(choice),
        group_(comm::connect(choice.world)),
        model_(nn::make_model(spec())),
        saver_(group_, train::saver_options({})) {
    if (choice.zero == 0) {
      model_->materialize();
      model_->reset_parameters(Key(0));
      reduction_ = parallel::data_parallel(*model_, group_);
    } else {
      auto sharding = parallel::sharded_data_parallel(
          *model_, mesh::Mesh(group_, {.dp_shard = group_.size()}),
          {.stage = static_cast<parallel::ShardStage>(choice.zero), .wrapping = {}});
      sharding->reset_parameters(Key(0));
      reduction_ = std::move(sharding);
    }
    const auto owned = reduction_->owned();
    optimizer_ = optim::make_optimizer(train::slices_of(owned), optim::AdamWOptions{});
    state_.emplace(owned, *optimizer_, group_, group_);
    step_.emplace(*model_, *optimizer_, *reduction_, group_, Key(0));
    step_->before_update([this] { saver_.before_update(); });
  }

  const comm::Group& group() const { return group_; }

  /// The time of one step; of the save too, if it ended behind it.
  double step(std::optional<checkpoint::Saved>* saved = nullptr) {
    const at::Tensor tokens = at::randint(0, spec().vocab, {1, choice_.columns + 1}, at::kLong);
    const train::RankBatch batch{.micro_batches = {{.inputs = tokens.slice(1, 0, choice_.columns),
                                                    .labels = tokens.slice(1, 1)}},
                                 .first_sample = group_.rank()};
    group_.barrier();
    const auto begin = Clock::now();
    step_->run(batch, {.step = record_.step++,
                       .learning_rate = 1e-4,
                       .clip_norm = 1,
                       .labels = static_cast<double>(choice_.columns * group_.size())});
    if (saved) *saved = saver_.poll();
    return milliseconds_since(begin);
  }

  void start_saving(int keep_last = 1) {
    state_->start_saving(saver_, choice_.directory, record_, {.keep_last = keep_last});
  }
  checkpoint::Saved wait() { return saver_.wait(); }

 private:
  model::ModelSpec spec() const {
    auto spec = model::named_model(choice_.model);
    if (!spec) throw Error(ErrorKind::kUsage, "bench", fmt::format("no model '{}'", choice_.model));
    spec->sequence = choice_.columns;
    return *spec;
  }

  const Choice& choice_;
  comm::Group group_;
  train::RunRecord record_{.model = spec()};
  std::shared_ptr<nn::Model> model_;
  std::unique_ptr<parallel::GradientReduction> reduction_;
  std::unique_ptr<optim::Optimizer> optimizer_;
  std::optional<train::TrainingState> state_;
  std::optional<train::TrainingStep> step_;
  checkpoint::Saver saver_;
};

/// The largest of all ranks.
double largest(const comm::Group& group, double value) {
  const at::Tensor most = at::full({1}, value, at::kDouble);
  group.all_reduce(most, {.reduction = comm::Reduction::kMax});
  return *most.const_data_ptr<double>();
}

/// Writes `bytes` as fast as the disk takes them: aligned, direct, into room that was reserved,
/// until they are on it.
void write_plainly(const std::string& path, std::int64_t bytes) {
  constexpr std::size_t kPiece = std::size_t{4} << 20;
  const std::unique_ptr<char, void (*)(void*)> piece(
      static_cast<char*>(std::aligned_alloc(4096, kPiece)), std::free);
  std::memset(piece.get(), 5, kPiece);
  const int file = ::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_DIRECT | O_CLOEXEC, 0644);
  bool done = file >= 0 && ::fallocate(file, 0, 0, bytes) == 0;
  for (std::int64_t at = 0; done && at < bytes; at += kPiece)
    done = ::pwrite(file, piece.get(), kPiece, at) == static_cast<ssize_t>(kPiece);
  if (!done || ::fsync(file) != 0)
    throw system_error(ErrorKind::kOutput, "bench", fmt::format("cannot write '{}'", path));
  ::close(file);
}

std::int64_t bytes_of_files(const std::string& checkpoint) {
  std::int64_t bytes = 0;
  for (const auto& file : checkpoint::format::read_manifest(checkpoint).files) bytes += file.bytes;
  return bytes;
}

void run(const Choice& choice) {
  at::set_num_threads(1);
  Run run(choice);
  const comm::Group& group = run.group();
  for (int i = 0; i < choice.warmup; ++i) run.step();
  // The first save takes its staging: it is not counted.
  run.start_saving();
  std::int64_t bytes = bytes_of_files(run.wait().path);

  std::vector<double> alone;
  std::vector<double> saving;
  std::vector<double> held_up;
  std::vector<double> took;
  for (int round = 0; round < choice.saves; ++round) {
    for (int i = 0; i < choice.steps; ++i) alone.push_back(run.step());
    run.start_saving();
    std::optional<checkpoint::Saved> saved;
    while (!saved) saving.push_back(run.step(&saved));
    saving.pop_back();  // in the last one only the name was given
    held_up.push_back(largest(group, milliseconds(saved->held_up))),
        took.push_back(milliseconds(saved->took));
  }

  std::vector<double> idle;
  std::vector<double> disk;
  const std::string plain = fmt::format("{}/plain-{}", choice.directory, group.rank());
  for (int i = 0; i < choice.idle; ++i) {
    // What goes, goes outside the time of either.
    group.barrier();
    auto begin = Clock::now();
    write_plainly(plain, bytes / group.size());
    group.barrier();
    disk.push_back(static_cast<double>(bytes) / 1e3 / milliseconds_since(begin));
    ::unlink(plain.c_str());
    group.barrier();
    begin = Clock::now();
    run.start_saving(0);
    const std::string path = run.wait().path;
    idle.push_back(static_cast<double>(bytes) / 1e3 / milliseconds_since(begin));
    if (group.rank() == 0) std::filesystem::remove_all(path);
  }
  if (group.rank() == 0) {
    fmt::print(
        "{{\"bytes\": {}, \"alone_ms\": [{:.1f}], \"saving_ms\": [{:.1f}], \"held_up_ms\": "
        "[{:.1f}], \"took_ms\": [{:.1f}], "
        "\"idle_mb_per_s\": [{:.0f}], \"disk_mb_per_s\": [{:.0f}]}}\n",
        bytes, fmt::join(alone, ", "), fmt::join(saving, ", "), fmt::join(held_up, ", "),
        fmt::join(took, ", "), fmt::join(idle, ", "), fmt::join(disk, ", "));
  }
}

}  // namespace
}  // namespace shoal::bench

int main(int argc, char** argv) {
  shoal::bench::Choice choice;
  CLI::App app("One rank of data-parallel GPT-2 training that saves.");
  app.add_option("--name", choice.world.name, "of the job, the same on all ranks")->required();
  app.add_option("--rank", choice.world.rank)->required();
  app.add_option("--world", choice.world.size, "ranks")->required();
  app.add_option("--directory", choice.directory, "gets the checkpoints")->required();
  app.add_option("--model", choice.model, "a GPT-2 of model::named_model");
  app.add_option("--seq", choice.columns, "tokens a rank and step");
  app.add_option("--warmup", choice.warmup, "steps before the first save");
  app.add_option("--steps", choice.steps, "steps that are timed before each save");
  app.add_option("--saves", choice.saves, "saves behind training");
  app.add_option("--idle", choice.idle, "saves with nothing else to do");
  app.add_option("--zero", choice.zero, "ZeRO stage; 0: none")->check(CLI::Range(0, 3));
  CLI11_PARSE(app, argc, argv);
  choice.world.key = choice.world.name;
  try {
    shoal::bench::run(choice);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "gpt2_save: %s\n", error.what());
    return 1;
  }
  return 0;
}
