// Forward passes that run again because the parameters have changed under them.
#include <gtest/gtest.h>

#include "tests/parallel/pipeline/tiny_pipeline.h"

namespace shoal::parallel::confirm_test {
namespace {

struct Step {
  double loss = 0;
  Gradients gradients;
};

void change(nn::Model& model) {
  for (const auto& parameter : model.parameters()) parameter->tensor().detach().mul_(1.25);
}

/// Two steps of a table; `confirm` is asked in both.
std::vector<Step> two_steps(Rank& rank, int micro_batches) {
  std::vector<Step> steps;
  for (const int number : {0, 1}) {
    Step step;
    step.loss = rank.pipeline->run(step_of(micro_batches, number));
    step.gradients = gradients_of(*rank.model);
    rank.model->clear_gradients();
    steps.push_back(std::move(step));
  }
  return steps;
}

class Confirm : public ::testing::TestWithParam<int> {};

// The second step begins with old parameters; when the pipeline asks, they change. Losses and
// gradients are those of ranks that had the new parameters from the beginning.
TEST_P(Confirm, PassesRunAgainWithTheNewParameters) {
  const int ranks = GetParam();
  const model::ModelSpec spec = tiny_spec("gpt2-tiny", false);
  for (const std::string& name : schedule::schedule_names()) {
    const int micro_batches = 2 * ranks;
    const auto table = schedule::make_schedule(name, ranks, chunks_of(name), micro_batches);
    const auto sizes = even_stages(8, table.stages());
    comm::run_on_threads(threads(ranks), [&](const comm::Group& group) {
      int asked = 0;
      nn::Model* own = nullptr;
      PipelineEvents events;
      events.confirm = [&] {
        if (++asked == 1) return true;
        change(*own);
        return false;
      };
      Rank rank(spec, table, sizes, group, events);
      own = rank.model.get();
      Rank reference(spec, table, sizes, group);
      const std::vector<Step> found = two_steps(rank, micro_batches);
      EXPECT_EQ(asked, 2) << name;
      EXPECT_EQ(rank.pipeline->live_passes(), 0u) << name;

      std::vector<Step> expected;
      for (const int number : {0, 1}) {
        if (number == 1) change(*reference.model);
        Step step;
        step.loss = reference.pipeline->run(step_of(micro_batches, number));
        step.gradients = gradients_of(*reference.model);
        reference.model->clear_gradients();
        expected.push_back(std::move(step));
      }
      for (const int number : {0, 1}) {
        EXPECT_EQ(found[number].loss, expected[number].loss) << name << ", rank " << group.rank();
        ASSERT_EQ(found[number].gradients.size(), expected[number].gradients.size());
        for (const auto& [parameter, gradient] : expected[number].gradients) {
          EXPECT_TRUE(found[number].gradients.at(parameter).equal(gradient))
              << name << ", rank " << group.rank() << ", step " << number << ": " << parameter;
        }
      }
    });
  }
}

INSTANTIATE_TEST_SUITE_P(Ranks, Confirm, ::testing::Values(2, 3, 4));

}  // namespace
}  // namespace shoal::parallel::confirm_test
