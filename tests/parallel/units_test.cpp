// Which modules become sharding units, how their parameters lie, and what stays of them in memory.
#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <gtest/gtest.h>

#include <chrono>
#include <map>

#include "shoal/base/error.h"
#include "shoal/base/memory_category.h"
#include "shoal/base/name_pattern.h"
#include "shoal/comm/allocator.h"
#include "shoal/comm/world.h"
#include "shoal/parallel/shard/flat_unit.h"
#include "shoal/parallel/shard/sharding.h"
#include "tests/parallel/tiny_training.h"

namespace shoal::parallel::units_test {
namespace {

using By = Wrapping::By;
using Names = std::vector<std::string>;

Names paths(const Wrapping& wrapping) {
  const auto model = nn::make_model(tiny());
  Names result;
  for (const WrappedModule& unit : wrap(*model, wrapping)) result.push_back(unit.module->path());
  return result;
}

TEST(Wrapping, AStarStandsForAnyText) {
  for (const auto& [pattern, path] :
       std::vector<std::pair<std::string, std::string>>{{"head", "head"},
                                                        {"*", ""},
                                                        {"*", "blocks.0"},
                                                        {"blocks.*", "blocks.11.mlp"},
                                                        {"blocks.1*", "blocks.1"},
                                                        {"blocks.*.mlp", "blocks.0.mlp"},
                                                        {"*.mlp", "blocks.0.mlp"},
                                                        {"a*b*c", "a.b.b.c"}})
    EXPECT_TRUE(fits_pattern(pattern, path)) << pattern << " " << path;
  for (const auto& [pattern, path] :
       std::vector<std::pair<std::string, std::string>>{{"head", "heads"},
                                                        {"heads", "head"},
                                                        {"blocks.*", "blocks"},
                                                        {"blocks.*.mlp", "blocks.0.mlp.up"},
                                                        {"*.mlp", "mlp"},
                                                        {"b*", "ab"},
                                                        {"a*b*c", "a.c.b"}})
    EXPECT_FALSE(fits_pattern(pattern, path)) << pattern << " " << path;
}

TEST(Wrapping, ByBlockByNameAndWhole) {
  EXPECT_EQ(paths({}), (Names{"", "embedding", "blocks.0", "blocks.1", "head"}));
  EXPECT_EQ(paths({.by = By::kWhole}), Names{""});
  EXPECT_EQ(paths({.by = By::kName, .names = {"head", "blocks.*.mlp"}}),
            (Names{"", "blocks.0.mlp", "blocks.1.mlp", "head"}));
  EXPECT_EQ(paths({.by = By::kName, .names = {"head", "head"}}), (Names{"", "head"}));
  try {
    paths({.by = By::kName, .names = {"head", "blocks.2"}});
    ADD_FAILURE() << "it was taken";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kConfig);
    EXPECT_NE(std::string(error.what()).find("'blocks.2'"), std::string::npos);
  }
  EXPECT_EQ(Wrapping().parameters, 1'000'000);
  // A module that is no model has no blocks: its children take their place.
  const auto model = nn::make_model(tiny());
  Names of_block;
  for (const WrappedModule& unit : wrap(*model->find_module("blocks.1"), {}))
    of_block.push_back(unit.module->path());
  EXPECT_EQ(of_block, (Names{"blocks.1", "blocks.1.norm_1", "blocks.1.attention", "blocks.1.norm_2",
                             "blocks.1.mlp"}));
}

// A feed-forward layer has 4,712 elements, attention 4,224, the norms of a block 128, the embedding
// 2,656; the output matrix is the embedding's.
TEST(Wrapping, BySizeFromTheLeavesUp) {
  const auto by_size = [](std::int64_t least) {
    return paths({.by = By::kSize, .parameters = least});
  };
  EXPECT_EQ(by_size(4712), (Names{"", "blocks.0.mlp", "blocks.1.mlp"}));
  EXPECT_EQ(by_size(4713), (Names{"", "blocks.0", "blocks.1"}));
  EXPECT_EQ(by_size(9064), (Names{"", "blocks.0", "blocks.1"}));
  EXPECT_EQ(by_size(9065), Names{""});
  EXPECT_EQ(by_size(4352), (Names{"", "blocks.0", "blocks.0.mlp", "blocks.1", "blocks.1.mlp"}))
      << "what is left of a block is enough";
}

TEST(Wrapping, EveryParameterIsInOneUnitAndATiedOneIsBorrowed) {
  const auto model = nn::make_model(tiny());
  const auto units = wrap(*model, {});
  ASSERT_EQ(units.size(), 5u);
  std::size_t count = 0;
  for (const WrappedModule& unit : units) count += unit.parameters.size();
  EXPECT_EQ(count, model->parameters().size());
  EXPECT_TRUE(units[0].parameters.empty());
  EXPECT_EQ(units[0].parent, -1);
  for (std::size_t u = 1; u < units.size(); ++u) EXPECT_EQ(units[u].parent, 0);
  ASSERT_EQ(units[4].borrowed.size(), 1u);
  EXPECT_EQ(units[4].borrowed[0]->name(), "embedding.tokens.weight");
  EXPECT_TRUE(units[1].borrowed.empty());
  const auto nested = wrap(*model, {.by = By::kName, .names = {"blocks.1", "blocks.*.mlp"}});
  ASSERT_EQ(nested.size(), 4u);
  EXPECT_EQ(nested[3].module->path(), "blocks.1.mlp");
  EXPECT_EQ(nested[3].parent, 2);
  EXPECT_EQ(nested[1].parent, 0);
}

std::vector<std::shared_ptr<nn::Parameter>> parameters_of(const std::vector<std::int64_t>& counts) {
  std::vector<std::shared_ptr<nn::Parameter>> made;
  for (const std::int64_t count : counts) {
    made.push_back(std::make_shared<nn::Parameter>(std::vector<std::int64_t>{count},
                                                   model::Init::kZeros, 0, false));
    made.back()->add_name("w" + std::to_string(made.size()));
  }
  return made;
}

// 16 float32 are a cache line: 5, 40 and 16 elements begin at 0, 16 and 64 and end at 80, of which
// each of three ranks has 27 or, in whole lines, 32.
TEST(FlatUnit, LiesInWholeCacheLines) {
  const auto units = flat_units("u", parameters_of({5, 40, 16}), 3);
  ASSERT_EQ(units.size(), 1u);
  const FlatUnit& unit = units[0];
  EXPECT_EQ(unit.members[0].offset, 0);
  EXPECT_EQ(unit.members[1].offset, 16);
  EXPECT_EQ(unit.members[2].offset, 64);
  EXPECT_EQ(unit.shard, 32);
  EXPECT_EQ(unit.size(), 96);
  using Range = std::pair<std::int64_t, std::int64_t>;
  EXPECT_EQ(unit.range(unit.members[0], 0), Range(0, 5));
  EXPECT_EQ(unit.range(unit.members[1], 0), Range(0, 16));
  EXPECT_EQ(unit.place(unit.members[1], 0), 16);
  EXPECT_EQ(unit.range(unit.members[1], 1), Range(16, 40));
  EXPECT_EQ(unit.place(unit.members[1], 1), 0);
  EXPECT_EQ(unit.range(unit.members[2], 1), Range(0, 0));
  EXPECT_EQ(unit.range(unit.members[2], 2), Range(0, 16));
  EXPECT_EQ(unit.place(unit.members[2], 2), 0);
  const auto [begin, end] = unit.range(unit.members[0], 2);
  EXPECT_EQ(begin, end);
  EXPECT_EQ(flat_units("u", parameters_of({64}), 4)[0].shard, 16);
  EXPECT_EQ(flat_units("u", parameters_of({65}), 4)[0].shard, 32);
}

// 32 elements of 16 bits are a line, of the values or of their gradients.
TEST(FlatUnit, KindsOfParametersAreApart) {
  const auto parameters = parameters_of({5, 6, 7, 8, 9});
  parameters[1]->set_requires_grad(false);
  parameters[2]->set_types(at::kBFloat16, at::kFloat);
  parameters[3]->set_types(at::kFloat, at::kBFloat16);
  parameters[4]->set_types(at::kBFloat16, at::kFloat);
  const auto units = flat_units("u", parameters, 1);
  ASSERT_EQ(units.size(), 4u);
  std::int64_t members = 0;
  for (const FlatUnit& unit : units) {
    members += static_cast<std::int64_t>(unit.members.size());
    EXPECT_EQ(unit.name, "u");
    const auto& first = unit.members[0].parameter;
    EXPECT_EQ(unit.type, first->tensor().scalar_type());
    EXPECT_EQ(unit.gradient_type, first->gradient_type());
    EXPECT_EQ(unit.trained, first != parameters[1]);
    // Two parameters of bf16 with gradients in float32 are two lines; one of floats is one.
    const std::map<std::string, std::int64_t> shards{
        {"w1", 16}, {"w2", 16}, {"w3", 64}, {"w4", 32}};
    EXPECT_EQ(unit.shard, shards.at(first->name())) << first->name();
  }
  EXPECT_EQ(members, 5);
}

// Frozen parameters are exchanged before training only, unless a rule adjusts one of them.
TEST(FlatUnit, KnowsWhetherARuleAdjustsAMember) {
  const auto parameters = parameters_of({5, 6, 7});
  for (const auto& parameter : parameters) parameter->set_requires_grad(false);
  parameters[1]->set_adjusted(true);
  EXPECT_TRUE(flat_units("u", parameters, 1)[0].adjusted);
  EXPECT_FALSE(flat_units("u", {parameters[0], parameters[2]}, 1)[0].adjusted);
}

TEST(ShardingLimits, OptionsThatMakeNoSenseAreRefused) {
  const auto refused = [](int ranks, const plan::Degrees& degrees, const ShardingOptions& options,
                          bool with_memory, const std::string& words) {
    try {
      comm::run_on_threads({.size = ranks, .arena = false, .timeout = std::chrono::seconds(60)},
                           [&](const comm::Group& world) {
                             const auto model = nn::make_model(tiny());
                             if (with_memory) model->materialize();
                             sharded_data_parallel(*model, mesh::Mesh(world, degrees), options);
                           });
      ADD_FAILURE() << "taken; expected: " << words;
    } catch (const Error& error) {
      EXPECT_NE(std::string(error.what()).find(words), std::string::npos) << error.what();
    }
  };
  const plan::Degrees two{.dp_shard = 2};
  refused(2, two, {.stage = ShardStage::kOptimizer, .reduce_every_micro_batch = true}, false,
          "stage 1 keeps whole gradients");
  refused(2, two, {.in_flight = 0}, false, "0 units in flight: at least 1");
  refused(2, two, {.transfer_type = at::kHalf}, false, "float32 or bf16");
  refused(2, two, {}, true, "has memory already");
  refused(2, {.dp_shard = 3}, {}, false, "is 3 ranks, but there are 2");
}

// Stage 3 with copies: two ranks hold a half each, and of the rest what is gathered.
TEST(ShardingMemory, WhatIsReleasedIsFree) {
  model::ModelSpec spec = tiny();
  spec.layers = 12;
  double all = 0;
  double block = 0;
  double embedding = 0;
  for (const model::ParameterSpec& parameter : model::parameters(spec)) {
    const double bytes = 4 * parameter.count();
    all += bytes;
    if (parameter.name.starts_with("blocks.0.")) block += bytes;
    if (parameter.name.starts_with("embedding.")) embedding += bytes;
  }
  comm::run_on_threads(
      {.size = 2, .memory_limit_bytes = std::size_t{1} << 30, .timeout = std::chrono::seconds(60)},
      [&](const comm::Group& world) {
        const auto model = nn::make_model(spec);
        const auto sharding = sharded_data_parallel(*model, mesh::Mesh(world, {.dp_shard = 2}),
                                                    {.copies = ShardingOptions::Copies::kCopied});
        const auto expect_in_use = [&](double least, double most, const char* when) {
          world.barrier();
          const auto ledger = comm::installed_arena()
                                  ->ledger()
                                  .categories[static_cast<int>(MemoryCategory::kParameters)];
          EXPECT_GE(static_cast<double>(ledger.in_use), least) << when;
          EXPECT_LE(static_cast<double>(ledger.in_use), most) << when;
          world.barrier();
        };
        expect_in_use(all, 1.05 * all, "made");
        sharding->reset_parameters(Key(1));
        expect_in_use(all, 1.05 * all, "filled");
        world.barrier();
        if (world.rank() == 0) comm::installed_arena()->reset_peaks();
        world.barrier();
        nn::Context context;
        const at::Tensor tokens = at::arange(16, at::kLong).view({1, 16});
        context.labels = tokens;
        sharding->begin(0, 1);
        (*model)(tokens, context).backward();
        sharding->finish();
        expect_in_use(all, 1.05 * all, "after a step");
        const auto peak =
            static_cast<double>(comm::installed_arena()
                                    ->ledger()
                                    .categories[static_cast<int>(MemoryCategory::kParameters)]
                                    .peak);
        // On each rank the embedding, which the head reads, and the blocks before, at and behind.
        EXPECT_LE(peak, 1.05 * (all + 2 * (embedding + 3 * block)));
        sharding->unshard();
        expect_in_use(3 * all, 3 * 1.05 * all, "unsharded");
        sharding->reshard();
        expect_in_use(all, 1.05 * all, "sharded again");
      });
}

}  // namespace
}  // namespace shoal::parallel::units_test
