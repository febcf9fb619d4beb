// Tensor-parallel products that run while rows travel, against gathers and sums before and behind
// them: the same bits and bytes; with other techniques against one rank; a rank that fails.
#include <ATen/ops/empty.h>
#include <ATen/ops/equal.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>

#include "shoal/parallel/tensor/column_linear.h"
#include "shoal/parallel/tensor/overlapped_products.h"
#include "shoal/parallel/tensor/row_messages.h"
#include "tests/error_text.h"
#include "tests/parallel/combinations/one_step.h"
#include "tests/parallel/tensor_pass.h"
#include "tests/support/without_shared_memory.h"

namespace shoal::parallel::tensor_overlap_test {
namespace {

comm::WorldOptions ranks(int size) {
  return {.size = size, .arena = false, .timeout = std::chrono::seconds(30)};
}

TEST(TensorOverlap, HasTheBitsAndTheBytesOfGathersAndSums) {
  for (const int size : {2, 3, 4}) {
    comm::run_on_threads(ranks(size), [&](const comm::Group& world) {
      const comm::Group apart = comm::without_shared_memory(world);
      for (const TensorPass& pass : tensor_passes()) {
        const double before = world.bytes_sent();
        const at::Tensor expected = loss_and_gradients(world, pass, kSlowLinks);
        const double sent = world.bytes_sent() - before;
        for (const double links : {kSlowLinks, kFastLinks}) {
          const double before_apart = apart.bytes_sent();
          const at::Tensor found = loss_and_gradients(apart, pass, links);
          EXPECT_TRUE(at::equal(found, expected))
              << pass.spec.name << ", " << pass.samples << " x " << pass.columns << " of "
              << c10::toString(pass.type) << ", rank " << world.rank() << " of " << size
              << ", a byte in " << links << " s";
          // Of all-reduces a rank of three sends 4/3: differences of sums of thirds are rounded.
          EXPECT_NEAR(apart.bytes_sent() - before_apart, sent, 1e-6) << pass.spec.name;
        }
      }
    });
  }
}

// Without this the test above might compare a way with itself.
TEST(TensorOverlap, IsForRanksThatShareNoMemory) {
  comm::run_on_threads(ranks(2), [](const comm::Group& world) {
    const auto gathers_itself = [](const comm::Group& group, const ModelSpec& spec,
                                   const char* path) {
      const mesh::Mesh mesh(group, {.tp = 2});
      const auto model = nn::make_model(spec);
      split_tensors(*model, mesh);
      return dynamic_cast<ColumnLinear*>(model->find_module(path)) != nullptr;
    };
    const comm::Group apart = comm::without_shared_memory(world);
    for (const char* path : {"blocks.0.attention.qkv", "blocks.1.mlp.gate", "blocks.1.mlp.up"}) {
      EXPECT_TRUE(gathers_itself(apart, llama(), path)) << path;
      EXPECT_FALSE(gathers_itself(world, llama(), path)) << path;
    }
    EXPECT_TRUE(gathers_itself(apart, gpt2(), "blocks.1.mlp.up"));
    EXPECT_FALSE(gathers_itself(apart, llama(), "blocks.0.mlp.down"));
  });
}

TEST(TensorOverlap, CutsProductsWhereRowsTravelLongerThanWeightsArePacked) {
  comm::run_on_threads(ranks(3), [](const comm::Group& world) {
    // To two others, 2 x 1,000,000 bytes; two packings of 2,500,000 weights at 5 GB/s take 4 ms.
    const at::Tensor rows = at::empty({100, 2500}, at::kFloat);
    EXPECT_TRUE(worth_cutting({world, 2.1e-9}, rows, 2'500'000));
    EXPECT_FALSE(worth_cutting({world, 1.9e-9}, rows, 2'500'000));
    // Any figure will do that all ranks have: a megabyte in less than a second.
    const double measured = measured_links(world).seconds_per_byte;
    EXPECT_GT(measured, 0);
    EXPECT_LT(measured, 1e-6);
    EXPECT_EQ(world.sum(measured), 3 * measured);
  });
}

// Split backward passes, sharded parameters that are gathered as modules run, context parallelism
// and experts, each beside it.
TEST(TensorOverlap, GoesWithOtherTechniques) {
  const ModelSpec spec = gpt2();
  const OneStep alone = one_step_alone(spec);
  for (const Combination& way :
       {Combination{{.pp = 2, .tp = 2}, 0, "zb-h1"}, Combination{{.pp = 2, .tp = 2}, 3, "zb-v"},
        Combination{{.dp_shard = 2, .tp = 2}, 3}, Combination{{.dp_replicate = 2, .tp = 2}, 1},
        Combination{{.cp = 2, .tp = 2}, 2}}) {
    comm::run_on_threads(ranks(way.ranks()), [&](const comm::Group& world) {
      const comm::Group apart = comm::without_shared_memory(world);
      compare_one_step(mesh::Mesh(apart, way.degrees), apart, way, spec, alone);
    });
  }
}

// The others wait for the rows that it does not send.
TEST(TensorOverlap, ARankThatFailsBetweenTwoProductsEndsTheOthers) {
  const auto start = Clock::now();
  for (const char* path : {"blocks.1.attention.core", "blocks.0.norm_2"}) {
    const auto body = [&](const comm::Group& world) {
      const comm::Group apart = comm::without_shared_memory(world);
      const mesh::Mesh mesh(apart, {.tp = 3});
      const ModelSpec spec = divisible(gpt2());
      const auto model = nn::make_model(spec);
      split_tensors(*model, mesh, {}, kSlowLinks);
      model->materialize();
      fill(*model);
      if (world.rank() == 1) {
        model->find_module(path)->on_pre_forward(
            [](nn::Module&, const at::Tensor&, const nn::Context&) -> at::Tensor {
              throw Error(ErrorKind::kData, "shard", "token 7 is torn");
            });
      }
      const Data all = data(12, 5);
      try {
        (*model)(all.inputs, context_of(BatchShare(mesh), all, 0));
        ADD_FAILURE() << "rank " << world.rank() << " heard nothing";
      } catch (const Error& error) {
        EXPECT_THAT(error.what(), testing::HasSubstr("token 7 is torn")) << world.rank();
        throw;
      }
    };
    EXPECT_THAT(error_text([&] { comm::run_on_threads(ranks(3), body); }),
                testing::HasSubstr("token 7 is torn"));
  }
  EXPECT_LT(Clock::now() - start, std::chrono::seconds(10));
}

}  // namespace
}  // namespace shoal::parallel::tensor_overlap_test
