#pragma once

#include <optional>
#include <string>

#include "shoal/base/clock.h"
#include "shoal/train/evaluation.h"
#include "shoal/train/fault.h"
#include "shoal/train/report/run_report.h"
#include "shoal/train/run.h"
#include "shoal/train/trainer.h"

namespace shoal::train {

/// Advances a run that RunSetup has built: it executes steps, evaluates and writes checkpoints,
/// until the last step is done or a signal stops it.
class TrainingLoop {
 public:
  /// The arguments must outlive this object.
  TrainingLoop(const RunOptions& options, Run& run, RunReport& report);

  /// Returns 0, or 128 + the signal that stopped the run. Collective.
  int run();

 private:
  /// Holds the values that all ranks agree on before a step.
  struct Agreement {
    double labels = 0;      ///< valid labels of the global batch; of the member's part of it
    int signal = 0;         ///< a rank was asked to stop by it; 0: none was
    bool save = false;      ///< another terminal asked rank 0 for a checkpoint
    double peak_bytes = 0;  ///< the sum of all ranks' peaks so far
    MemoryByCategory peak{};
    /// Means over the ranks in the step before, in seconds; empty before the second step.
    std::optional<double> data_wait_s{};
    std::optional<double> comm_exposed_s{};
  };
  /// How long this rank was kept from computing in a step, in seconds.
  struct Waits {
    double data = 0;
    double communication = 0;
  };

  /// The samples of a step, and the values that the ranks agree on before it, on their way.
  struct Prepared {
    RankBatch batch;
    double data_wait_s = 0;
    at::Tensor sums;
    bool has_waits = false;  ///< of an earlier step
    comm::Work work;
    /// Valid labels of the member, and the sum over its ranks; without members undefined.
    at::Tensor member_labels;
    comm::Work member_work;
  };

  double own_device_bytes() const;
  Prepared prepare(std::int64_t first_sample);
  Agreement agreed_in(Prepared& prepared) const;
  double labels_of(const RankBatch& batch) const;
  void begin_memory(std::int64_t step);
  int train();
  bool save_is_asked();
  StepResult step_of_member(const StepInput& input);
  StepMetrics one_step(const RankBatch& batch, double labels, Poison poison,
                       Clock::time_point begin);
  bool may_end_early(std::int64_t step) const;
  void report_validated();
  bool evaluation_is_due(std::int64_t step) const;
  bool save_is_due(std::int64_t step) const;
  bool trains_in_members() const;
  bool agrees_ahead() const;
  Evaluation evaluate_now();
  Evaluation evaluate_model();

  void begin_board();
  void begin_step_on_board(std::int64_t step);
  void show(RunPhase phase);
  void save_as_asked();
  void answer_save();
  void saved(const checkpoint::Saved& saved);
  void save_if_due();
  void finish_saving();
  void start_saving();
  std::string save();

  int stop(int signal);
  void finish();
  std::string draw_sample();
  bool model_fits_whole() const;
  double total_peak_flops(double run_seconds) const;
  void plan_trace();
  void report_step(const StepMetrics& metrics);

  const RunOptions& options_;
  const JobConfig& config_;
  Run& run_;
  RunReport& report_;
  Clock::time_point began_;
  std::optional<Waits> waits_;     ///< of the step before
  std::optional<Prepared> ahead_;  ///< the next step, where the ranks agree a step early
  /// Metrics of a step that ended before it was validated: without loss and norm.
  std::optional<StepMetrics> unvalidated_;
  double plain_flops_ = 0;         ///< float32 FLOP/s of plain loops on all ranks
  std::int64_t first_step_ = 0;    ///< steps that were trained before this start
  std::int64_t first_tokens_ = 0;  ///< tokens likewise
  std::int64_t saved_step_ = -1;   ///< step of the newest checkpoint; -1: there is none
  /// Requests for checkpoints on rank 0: the last one seen, and the one that the checkpoint being
  /// written answers (0: none).
  std::int64_t save_seen_ = 0;
  bool save_asked_ = false;  ///< and not begun
  std::int64_t save_to_answer_ = 0;
};

}  // namespace shoal::train
