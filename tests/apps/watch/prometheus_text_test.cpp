#include "apps/shoal/watch/prometheus_text.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <string>

#include "shoal/base/memory_category.h"
#include "tests/apps/watch/exposition_format.h"

namespace shoal::apps::prometheus_text_test {
namespace {

using testing::Exposition;
using ::testing::HasSubstr;

RunSummary running() {
  RunSummary run;
  run.directory = "runs/x";
  run.job = JobStatus{.process = 1, .phase = "training", .total_steps = 40, .training_s = 60};
  run.job->ranks = {{.rank = 0,
                     .process = 100,
                     .state = ProcessState::kRunning,
                     .step = 11,
                     .age_s = 0.25,
                     .resident_bytes = 5000000},
                    {.rank = 1,
                     .process = 101,
                     .state = ProcessState::kStopped,
                     .step = 10,
                     .age_s = -1,
                     .resident_bytes = 7000000},
                    {.rank = 2}};
  train::StepMetrics step;
  step.step = 10;
  step.loss = 0.1;
  step.grad_norm = std::numeric_limits<double>::infinity();
  step.lr = 1e-30;
  step.tokens = 123456789012345;
  step.tokens_per_s = 2500;
  step.mfu = 0.125;
  step.memory_bytes = 3e9;
  step.memory[static_cast<std::size_t>(MemoryCategory::kParameters)] = 1e9;
  run.recent = {step};
  run.checkpoint = 5;
  return run;
}

TEST(PrometheusText, SaysEachFigureOnce) {
  const Exposition page(prometheus_text(running()));
  EXPECT_EQ(page.error(), "");
  const auto value = [&](const std::string& name) {
    const auto found = page.samples().find(name);
    return found == page.samples().end() ? -1 : found->second;
  };
  EXPECT_EQ(value("shoal_step"), 10);
  EXPECT_EQ(value("shoal_planned_steps"), 40);
  // 10 steps in 60 seconds, and 30 to go.
  EXPECT_DOUBLE_EQ(value("shoal_remaining_seconds"), 180);
  EXPECT_EQ(value("shoal_checkpoint_step"), 5);
  EXPECT_EQ(value("shoal_loss"), 0.1) << "to the last bit";
  EXPECT_EQ(value("shoal_learning_rate"), 1e-30);
  EXPECT_TRUE(std::isinf(value("shoal_gradient_norm")));
  EXPECT_EQ(value("shoal_tokens_total"), 123456789012345);
  EXPECT_EQ(page.type_of("shoal_tokens_total"), "counter");
  EXPECT_EQ(page.type_of("shoal_step"), "gauge");
  EXPECT_EQ(value("shoal_tokens_per_second"), 2500);
  EXPECT_EQ(value("shoal_model_flops_utilization"), 0.125);
  EXPECT_EQ(value("shoal_tensor_memory_bytes{category=\"parameters\"}"), 1e9);
  EXPECT_EQ(value("shoal_phase{phase=\"training\"}"), 1);
  EXPECT_EQ(value("shoal_phase{phase=\"saving\"}"), 0);
  EXPECT_EQ(value("shoal_rank_step{rank=\"0\"}"), 11);
  EXPECT_EQ(value("shoal_rank_step{rank=\"1\"}"), 10);
  EXPECT_EQ(value("shoal_rank_idle_seconds{rank=\"0\"}"), 0.25);
  EXPECT_EQ(value("shoal_rank_running{rank=\"0\"}"), 1);
  EXPECT_EQ(value("shoal_rank_running{rank=\"1\"}"), 0);
  EXPECT_EQ(value("shoal_memory_bytes{rank=\"1\"}"), 7000000);
  // What is not known has no sample.
  for (const auto& [name, number] : page.samples()) {
    EXPECT_THAT(name, ::testing::Not(HasSubstr("rank=\"2\"")));
    EXPECT_NE(name, "shoal_rank_idle_seconds{rank=\"1\"}");
    EXPECT_NE(name, "shoal_step_duration_seconds");
  }
}

TEST(PrometheusText, OfARunThatHasJustBegunIsRight) {
  RunSummary run;
  run.job = JobStatus{.phase = "starting"};
  const Exposition page(prometheus_text(run));
  EXPECT_EQ(page.error(), "");
  EXPECT_EQ(page.samples().at("shoal_step"), 0);
  EXPECT_EQ(page.samples().at("shoal_phase{phase=\"starting\"}"), 1);
  EXPECT_EQ(page.samples().count("shoal_loss"), 0u);
  EXPECT_EQ(page.samples().count("shoal_planned_steps"), 0u);
}

TEST(PrometheusText, ShowsTheMemoryOfThreadsOnce) {
  RunSummary run = running();
  run.job->ranks[1].process = 100;
  const Exposition page(prometheus_text(run));
  EXPECT_EQ(page.samples().count("shoal_memory_bytes{rank=\"0\"}"), 1u);
  EXPECT_EQ(page.samples().count("shoal_memory_bytes{rank=\"1\"}"), 0u);
}

TEST(PrometheusText, OfAValidationBeforeTheLastStep) {
  RunSummary run = running();
  train::StepMetrics later = run.recent[0];
  run.recent[0].evaluation = train::Evaluation{.loss = 2.5, .labels = 3};
  later.step = 11;
  run.recent.push_back(later);
  const Exposition page(prometheus_text(run));
  EXPECT_EQ(page.error(), "");
  EXPECT_EQ(page.samples().at("shoal_validation_loss"), 2.5);
  EXPECT_EQ(page.samples().at("shoal_validation_step"), 10);
}

// The reader finds what it is there to find.
TEST(ExpositionFormat, HasRules) {
  const std::string right =
      "# HELP a_b Words.\n# TYPE a_b gauge\na_b{c=\"x\\\"y\"} 1e3\na_b +Inf\n";
  EXPECT_EQ(Exposition(right).error(), "");
  for (const char* wrong :
       {"", "# HELP a_b Words.\n# TYPE a_b gauge\na_b 1", "a_b 1\n", "# TYPE a_b gauge\na_b 1\n",
        "# HELP a_b Words.\n# TYPE a_b gauge\na_b one\n",
        "# HELP a_b Words.\n# TYPE a_b gauge\na_b 1\na_b 2\n",
        "# HELP a_b Words.\n# TYPE a_b gauge\na-b 1\n",
        "# HELP a_b Words.\n# TYPE a_b gauge\na_b{c=x} 1\n",
        "# HELP a_b Words.\n# TYPE a_b gauge\na_b{c=\"x\"d=\"y\"} 1\n",
        "# HELP a_b Words.\n# TYPE a_b counter\na_b 1\n",
        "# HELP a_total Words.\n# TYPE a_total gauge\na_total 1\n",
        "# HELP a_ms Words.\n# TYPE a_ms gauge\na_ms 1\n",
        "# HELP a_b Words.\n# TYPE a_b gauge\na_b  1\n",
        "# HELP a_b Words.\n# TYPE a_b gauge\na_b inf\n"})
    EXPECT_NE(Exposition(wrong).error(), "") << wrong;
}

}  // namespace
}  // namespace shoal::apps::prometheus_text_test
