// Every schedule against one rank that runs the same micro-batches in order: the same bits.
#include <ATen/ops/equal.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <thread>

#include "shoal/schedule/schedule_file.h"
#include "shoal/schedule/timeline.h"
#include "tests/parallel/pipeline/tiny_pipeline.h"

namespace shoal::parallel::same_bits_test {
namespace {

using schedule::Action;
using schedule::Schedule;

constexpr const char* kTied = "embedding.tokens.weight";

struct Variant {
  const char* family;
  bool tied;
};
constexpr Variant kVariants[] = {
    {"gpt2-tiny", false}, {"gpt2-tiny", true}, {"llama-tiny", false}, {"llama-tiny", true}};

/// The gradients of one rank. A tied weight is computed as two weights with the same values,
/// because two ranks add up all uses in the embedding and all uses in the head by themselves, and
/// then both sums.
Reference reference_of(const Variant& variant, const std::vector<MicroBatch>& batch) {
  const auto model = nn::make_model(tiny_spec(variant.family, false));
  fill(*model);
  const auto head = model->find_parameter("head.output.weight");
  if (variant.tied) head->tensor().detach().copy_(model->find_parameter(kTied)->tensor().detach());
  Reference reference = run_alone(*model, batch);
  if (variant.tied) {
    reference.gradients[kTied].add_(reference.gradients["head.output.weight"]);
    reference.gradients.erase("head.output.weight");
  }
  return reference;
}

/// Uneven on purpose: the first stages have one unit, the last all the rest but the head.
std::vector<std::int64_t> uneven(int stages) {
  std::vector<std::int64_t> sizes(stages, 1);
  sizes[stages / 2] += 8 - stages;
  return sizes;
}

/// Compares one rank's gradients. A tied weight whose uses lie on one rank is summed in the order
/// of the table: of the same numbers, with a rounding error of a few units in the last place.
void expect_same(const nn::Model& model, const Reference& reference, bool one_sum,
                 const std::string& where) {
  for (const auto& parameter : model.parameters()) {
    const at::Tensor& expected = reference.gradients.at(parameter->name());
    const at::Tensor gradient = parameter->gradient();
    ASSERT_TRUE(gradient.defined()) << where << " " << parameter->name();
    if (one_sum && parameter->name() == kTied) {
      EXPECT_LE((gradient - expected).norm().item<double>(), 1e-6 * expected.norm().item<double>())
          << where;
    } else {
      EXPECT_TRUE(gradient.equal(expected)) << where << " " << parameter->name();
    }
  }
}

class SameBits : public ::testing::TestWithParam<int> {};

TEST_P(SameBits, EveryScheduleGivesTheLossesAndGradientsOfOneRank) {
  const int ranks = GetParam();
  for (const Variant& variant : kVariants) {
    for (const int micro_batches : {1, 2, 3, 4, 8}) {
      const auto batch = step_of(micro_batches);
      const Reference reference = reference_of(variant, batch);
      const auto body = [&](const comm::Group& group) {
        for (const std::string& name : schedule::schedule_names()) {
          if (!has_table(name, ranks, micro_batches)) continue;
          const Schedule table =
              schedule::make_schedule(name, ranks, chunks_of(name), micro_batches);
          const std::string where =
              fmt::format("{} tied={} {} m={} rank {} of {}", variant.family, variant.tied, name,
                          micro_batches, group.rank(), ranks);
          std::vector<Action> seen;
          Rank rank(tiny_spec(variant.family, variant.tied), table, uneven(table.stages()), group,
                    {.action = [&](const Action& action) { seen.push_back(action); }});
          // A step leaves nothing behind that the next one would meet.
          const int steps = micro_batches == 2 || name == "dualpipe-v" ? 2 : 1;
          for (int step = 0; step < steps; ++step) {
            seen.clear();
            rank.model->clear_gradients();
            const double loss = rank.pipeline->run(batch);
            rank.reduce_ties();
            EXPECT_EQ(seen, table.table[group.rank()]) << where;
            const bool last = table.rank_of_stage.back() == group.rank();
            EXPECT_EQ(loss, last ? reference.loss : 0) << where;
            const bool one_sum = table.rank_of_stage.front() == table.rank_of_stage.back();
            expect_same(*rank.model, reference, one_sum, where);
          }
        }
      };
      comm::run_on_threads(threads(ranks), body);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Ranks, SameBits, ::testing::Values(1, 2, 3, 4));

// A tied matrix under a head that computes its logits again. On two ranks each use is summed by
// itself; on one rank of a V-shaped table the head's gradients are written among those of the
// embedding, in another order than where forward finishes them.
TEST(Pipeline, ATiedHeadThatRecomputesItsLogits) {
  constexpr int kRanks = 3, kMicroBatches = 6;
  const Variant variant{"llama-tiny", true};
  auto batch = step_of(kMicroBatches, 0, 130);
  const Reference reference = reference_of(variant, batch);
  for (MicroBatch& one : batch) one.context.recompute_logits = true;
  comm::run_on_threads(threads(kRanks), [&](const comm::Group& group) {
    for (const char* name : {"gpipe", "zb-h1", "zb-v", "dualpipe-v"}) {
      const Schedule table = schedule::make_schedule(name, kRanks, chunks_of(name), kMicroBatches);
      Rank rank(tiny_spec(variant.family, true), table, uneven(table.stages()), group);
      const double loss = rank.pipeline->run(batch);
      rank.reduce_ties();
      EXPECT_EQ(group.sum(loss), reference.loss) << name;
      const bool one_sum = table.rank_of_stage.front() == table.rank_of_stage.back();
      expect_same(*rank.model, reference, one_sum, name);
    }
  });
}

TEST(Pipeline, AFileMaySendManyMessagesBeforeTheOneThatIsAwaited) {
  const Schedule table = many_ahead();
  const Schedule read = schedule::from_csv(schedule::to_csv(table), "by_hand.csv");
  const auto batch = step_of(table.micro_batches);
  const Reference reference = reference_of(kVariants[2], batch);
  comm::run_on_threads(threads(2), [&](const comm::Group& group) {
    Rank rank(tiny_spec("llama-tiny", false), read, {3, 2, 2, 1}, group);
    rank.pipeline->run(batch);
    expect_same(*rank.model, reference, false, "by hand");
  });
}

// Late starts, late messages, late weight gradients: what a tensor still holds when it is read must
// not depend on time.
TEST(Pipeline, DelaysBeforeActionsChangeNoBit) {
  constexpr int kMicroBatches = 8;
  const auto batch = step_of(kMicroBatches);
  const Reference reference = reference_of(kVariants[1], batch);
  comm::run_on_threads(threads(3), [&](const comm::Group& group) {
    for (const char* name : {"1f1b", "zb-h2", "zb-v", "dualpipe-v"}) {
      const Schedule table = schedule::make_schedule(name, 3, chunks_of(name), kMicroBatches);
      std::uint64_t count = 0;
      const Key random = Key(7).child(name).child(static_cast<std::uint64_t>(group.rank()));
      Rank rank(tiny_spec("gpt2-tiny", true), table, uneven(table.stages()), group,
                {.action = [&](const Action&) {
                  // One in three sleeps, up to a millisecond.
                  const std::uint64_t drawn = random.below(count++, 3000);
                  if (drawn < 1000) std::this_thread::sleep_for(std::chrono::microseconds(drawn));
                }});
      rank.pipeline->run(batch);
      rank.reduce_ties();
      expect_same(*rank.model, reference, table.stages() == 6, name);
    }
  });
}

TEST(Pipeline, AnEvaluationRunsForwardsAlone) {
  constexpr int kMicroBatches = 8;
  const auto spec = tiny_spec("gpt2-tiny", true);
  const auto trained = step_of(kMicroBatches);
  auto batch = trained;
  for (MicroBatch& one : batch) one.context.training = false;
  const auto whole = nn::make_model(spec);
  fill(*whole);
  const double loss = run_alone(*whole, batch).loss;
  const double with_dropout = run_alone(*whole, trained).loss;
  EXPECT_NE(loss, with_dropout);
  comm::run_on_threads(threads(3), [&](const comm::Group& group) {
    for (const std::string& name : schedule::schedule_names()) {
      if (!has_table(name, 3, kMicroBatches)) continue;
      const Schedule table = schedule::make_schedule(name, 3, chunks_of(name), kMicroBatches);
      int events = 0;
      Rank rank(spec, table, even_stages(8, table.stages()), group,
                {.action = [&](const Action&) { ++events; }});
      // Between steps, whose gradients are not touched.
      EXPECT_EQ(group.sum(rank.pipeline->evaluate(batch)), loss) << name;
      for (const auto& parameter : rank.model->parameters())
        EXPECT_FALSE(parameter->gradient().defined());
      EXPECT_EQ(events, 0);
      EXPECT_EQ(group.sum(rank.pipeline->run(trained)), with_dropout) << name;
      EXPECT_EQ(group.sum(rank.pipeline->evaluate(batch)), loss) << name;
    }
  });
}

TEST(Pipeline, HoldsAsManyMicroBatchesAsTheTableSays) {
  constexpr int kMicroBatches = 8;
  const auto batch = step_of(kMicroBatches);
  comm::run_on_threads(threads(4), [&](const comm::Group& group) {
    for (const std::string& name : schedule::schedule_names()) {
      const Schedule table = schedule::make_schedule(name, 4, chunks_of(name), kMicroBatches);
      std::size_t most = 0;
      const Pipeline* pipeline = nullptr;
      Rank rank(tiny_spec("gpt2-tiny", false), table, even_stages(8, table.stages()), group,
                {.action = [&](const Action&) { most = std::max(most, pipeline->live_passes()); }});
      pipeline = rank.pipeline.get();
      rank.pipeline->run(batch);
      // A pass counts as long as anything of it is kept: until the weight gradient, where there is
      // one. Its peak is reached after a forward, which is before another action.
      const auto peaks =
          schedule::activation_peak(table, {{{.activations = 1, .weight_store = 1}}, 0, 0, {}});
      EXPECT_EQ(static_cast<double>(most), peaks[group.rank()]) << name << " " << group.rank();
      EXPECT_EQ(rank.pipeline->live_passes(), 0u);
    }
  });
}

}  // namespace
}  // namespace shoal::parallel::same_bits_test
