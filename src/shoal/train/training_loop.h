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
    double labels = 0;      ///< valid labels of the global batch
    int signal = 0;         ///< a rank was asked to stop by it; 0: none was
    bool save = false;      ///< another terminal asked rank 0 for a checkpoint
    double peak_bytes = 0;  ///< the sum of all ranks' peaks so far
    MemoryByCategory peak{};
    /// Of the step before, means over the ranks, in seconds; empty before the second step.
    std::optional<double> data_wait_s{};
    std::optional<double> comm_exposed_s{};
  };
  /// How long this rank was kept from computing in a step, in seconds.
  struct Waits {
    double data = 0;
    double communication = 0;
  };

  RankBatch next_batch();
  double labels_of(const RankBatch& batch) const;
  void begin_memory(std::int64_t step);
  int stop_signal() const;
  bool save_is_asked();
  Agreement agree(double labels);
  StepMetrics one_step(const RankBatch& batch, double labels, Poison poison,
                       Clock::time_point begin);
  bool evaluation_is_due() const;
  Evaluation evaluate_now();

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
  double total_peak_flops() const;
  void plan_trace();
  void report_step(const StepMetrics& metrics);

  const RunOptions& options_;
  const JobConfig& config_;
  Run& run_;
  RunReport& report_;
  Clock::time_point began_;
  std::optional<Waits> waits_;     ///< of the step before
  double data_wait_s_ = 0;         ///< of this step
  double plain_flops_ = 0;         ///< float32 FLOP/s of plain loops on all ranks
  std::int64_t first_step_ = 0;    ///< steps that were trained before this start
  std::int64_t first_tokens_ = 0;  ///< tokens likewise
  std::int64_t saved_step_ = -1;   ///< step of the newest checkpoint; -1: there is none
  /// Requests for checkpoints on rank 0: the last one seen, and the one that the checkpoint being
  /// written answers (0: none).
  std::int64_t save_seen_ = 0;
  std::int64_t save_to_answer_ = 0;
};

}  // namespace shoal::train
