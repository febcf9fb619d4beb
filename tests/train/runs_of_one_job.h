#pragma once

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "shoal/base/error.h"
#include "tests/train/small_job.h"
#include "tests/train/temporary_folder.h"

// Jobs that go on with what another mesh saved.

namespace shoal::train {

/// Some ranks and how they divide the model and its state.
struct Way {
  std::string name;
  int ranks = 1;
  Sets sets;
};

/// Runs of one job in folders of their own.
class RunsOfOneJob : public ::testing::Test {
 protected:
  static constexpr int kSaved = 2;  ///< saved behind training after this step

  void SetUp() override { prepare_small_text(path("data")); }
  /// Returns the text of the job, which takes its data from `path("data")` and saves every kSaved
  /// steps.
  virtual std::string job() const = 0;

  std::string path(const std::string& run) const { return folder_.path() + "/" + run; }
  std::string saved(const std::string& run, int step) const {
    return fmt::format("{}/checkpoints/step-{}", path(run), step);
  }

  /// Trains until an error ends it at the beginning of step `end` + 1, which skips what a run does
  /// at its end; returns what was measured.
  std::vector<StepMetrics> train_until(int end, const std::string& run, const Way& way,
                                       const Sets& sets = {}) {
    const Sets fault{"debug.fault=error", fmt::format("debug.fault_step={}", end + 1)};
    try {
      train_on_threads(path(run), job(), sets + way.sets + fault, way.ranks, nullptr, nullptr,
                       flight_);
      ADD_FAILURE() << "the run went on";
    } catch (const Error& error) {
      EXPECT_NE(std::string(error.what()).find("debug.fault"), std::string::npos) << error.what();
    }
    return read_metrics(RunDirectory(path(run)).metrics());
  }

  /// The same of a run that goes on with the step `step` that `from` saved.
  std::vector<StepMetrics> resume_until(int end, const std::string& run, const Way& way,
                                        const std::string& from, int step, const Sets& sets = {}) {
    std::filesystem::create_directories(path(run) + "/checkpoints");
    std::filesystem::create_directory_symlink(saved(from, step), saved(run, step));
    return train_until(end, run, way, sets);
  }

  TemporaryFolder folder_;
  std::shared_ptr<collective::FlightBook> flight_;  ///< records the collectives of runs; null: none
};

/// Expects `found` to be the steps of `whole` from `first` on: float32 sums in another order; ten
/// times less than what another sample or another dropout mask would do.
inline void expect_same_losses(const std::vector<StepMetrics>& found,
                               const std::vector<StepMetrics>& whole, std::size_t first,
                               const std::string& what) {
  ASSERT_EQ(found.size(), whole.size() - first) << what;
  for (std::size_t i = 0; i < found.size(); ++i) {
    EXPECT_EQ(found[i].step, whole[first + i].step) << what;
    EXPECT_EQ(found[i].tokens, whole[first + i].tokens) << what;
    EXPECT_NEAR(found[i].loss, whole[first + i].loss, 1e-5 * whole[first + i].loss)
        << what << ", step " << found[i].step;
  }
}

/// Expects that steps differ by more than expect_same_losses allows, all but a few: two that follow
/// each other may be alike by chance, as the text that they train on changes with the sources.
inline void expect_steps_differ(const std::vector<StepMetrics>& whole) {
  std::vector<double> differences;
  for (std::size_t i = 1; i < whole.size(); ++i)
    differences.push_back(std::abs(whole[i].loss - whole[i - 1].loss));
  ASSERT_FALSE(differences.empty());
  const auto middle = differences.begin() + static_cast<std::ptrdiff_t>(differences.size() / 2);
  std::nth_element(differences.begin(), middle, differences.end());
  ASSERT_GT(*middle, 1e-3) << "steps hardly differ: the test shows nothing";
}

}  // namespace shoal::train
