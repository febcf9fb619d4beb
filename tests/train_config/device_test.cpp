// What a job on GPUs may ask for, and what is refused by the name of its key.
#include "shoal/train/config/device.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "shoal/train/config/planned.h"
#include "shoal/train/config/validate.h"
#include "tests/error_text.h"

namespace shoal::train::device_test {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using Sets = std::vector<std::string>;

Job job_with(const Sets& sets) {
  return parse_job(
      "[model]\nname = \"gpt2-tiny\"\nvocab = 64\n[data]\nfolders = [\"a\"]\n[training]\n"
      "global_batch_sequences = 24\nsteps = 10\nsequence_length = 64\n[parallelism]\n"
      "device = \"cuda\"\n",
      "job.toml", sets);
}

TEST(Device, WhatGpusLackIsRefusedByItsKey) {
  const std::vector<std::pair<std::string, Sets>> refused{
      {"parallelism.tensor_parallel_degree", {"parallelism.tensor_parallel_degree=2"}},
      {"parallelism.context_parallel_degree", {"parallelism.context_parallel_degree=2"}},
      {"parallelism.pipeline_parallel_degree", {"parallelism.pipeline_parallel_degree=2"}},
      {"model.experts", {"model.experts=4", "model.experts_per_token=2"}},
      {"parallelism.transport", {"parallelism.transport=tcp"}},
      {"parallelism.memory_limit_mb", {"parallelism.memory_limit_mb=100"}},
      {"low_communication.method",
       {"low_communication.method=diloco", "low_communication.every=5"}},
      {"optimizer.state_folder", {"optimizer.state_folder=states"}},
      {"precision.master_weights", {"precision.type=bf16", "precision.master_weights=false"}},
      {"precision.moments", {"precision.moments=bf16"}},
      {"precision.type", {"precision.type=auto"}},
      {"activation_checkpoint.mode",
       {"activation_checkpoint.mode=budget", "activation_checkpoint.budget_mb=100"}}};
  for (const auto& [key, sets] : refused) {
    EXPECT_THAT(error_text([&] { validate(job_with(sets), 2); }),
                AllOf(HasSubstr(key), HasSubstr("parallelism.device = \"cpu\"")))
        << key;
    // The key alone is at fault.
    Sets on_cpu = sets;
    on_cpu.emplace_back("parallelism.device=cpu");
    EXPECT_EQ(error_text([&] { validate(job_with(on_cpu), 2); }), "") << key;
  }
}

TEST(Device, WhatGpusHaveIsAccepted) {
  for (const Sets& sets : std::vector<Sets>{
           {},
           {"precision.type=bf16", "precision.gradients=bf16"},
           {"precision.type=fp16"},
           {"parallelism.zero_stage=3", "parallelism.gather_ahead=2", "precision.gathers=bf16"},
           {"parallelism.bucket_mb=5"},
           {"activation_checkpoint.mode=selective"}}) {
    EXPECT_EQ(error_text([&] { validate(job_with(sets), 4); }), "") << testing::PrintToString(sets);
  }
  EXPECT_THAT(error_text([&] { job_with({"parallelism.device=tpu"}); }), HasSubstr("\"cuda\""));
}

// Ranks on GPUs do not read each other's parameters where they lie, and their memory is not
// planned.
TEST(Device, GpusShareNothingInPlace) {
  const Job cuda = job_with({});
  const Job cpu = job_with({"parallelism.device=cpu"});
  EXPECT_FALSE(reads_in_place(cuda.config, true));
  EXPECT_TRUE(reads_in_place(cpu.config, true));
  EXPECT_FALSE(reads_in_place(cpu.config, false));
  EXPECT_FALSE(
      reads_in_place(job_with({"parallelism.device=cpu", "parallelism.arena=false"}).config, true));
  EXPECT_FALSE(is_counted(cuda.config));
  EXPECT_TRUE(is_counted(cpu.config));
}

}  // namespace
}  // namespace shoal::train::device_test
