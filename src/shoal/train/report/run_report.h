#pragma once

#include <optional>
#include <string>
#include <vector>

#include "shoal/checkpoint/saver.h"
#include "shoal/train/config/metrics.h"
#include "shoal/train/report/progress.h"
#include "shoal/train/report/tensorboard.h"
#include "shoal/train/run.h"
#include "shoal/train/trainer.h"

namespace shoal::train {

/// The figures of a run from this start to its end.
struct RunTotals {
  double seconds = 0;
  std::int64_t steps = 0;
  std::int64_t tokens = 0;
  double peak_flops = 0;           ///< FLOP/s that the ranks reach together
  std::vector<MemoryPeak> memory;  ///< by rank; empty: not known
  double device_bytes = 0;         ///< tensors on GPUs at their peaks, of all ranks; 0: on CPU
  std::string sample;              ///< text that the model wrote; empty: none was asked for
};

/// Writes what people see of a run: console, metrics.jsonl, TensorBoard, plots and config.toml.
/// Every rank has one and calls the same functions; only rank 0 writes, except for memory
/// timelines, of which each rank writes its own.
class RunReport {
 public:
  /// Both must outlive this.
  RunReport(const RunOptions& options, const Run& run);

  /// Reports that the run was complete before it began.
  void already_finished() const;
  /// Opens the files and prints the head: model, data, plan and notes.
  void begin();
  void step(const StepMetrics& metrics);
  void log_save(const std::string& path) const;
  void log_save(const checkpoint::Saved& saved) const;
  void write_memory_timeline();
  /// Reports that the trace `path` is complete.
  void traced(const std::string& path);
  /// Prints and logs lines about the members of an elastic group.
  void notes(const std::vector<std::string>& lines);
  /// Reports that the run ends early because of `signal`; its state is in the checkpoint `path`.
  /// `other_member`: HOST:PORT of a member of the elastic group, which goes on; empty: there is
  /// none.
  void stopped(int signal, const std::string& path, const std::string& other_member);
  /// Lets the model continue the prompt of the job; empty without token data, or when the job wants
  /// none. Needs all parameters. Collective among the ranks that run the same samples.
  std::string draw_sample() const;
  /// Returns true where the job asks for a sample.
  bool draws_sample() const;
  /// Reports that the run is complete, with plots, totals and the sample.
  void finish(const RunTotals& totals);

 private:
  bool writes() const { return run_.group.rank() == 0; }
  void print(const std::string& line);
  void print_head();
  void plot_losses() const;
  JobConfig resolved_config() const;
  std::string describe_batch() const;
  std::string describe_plan() const;
  std::string describe_work(double tokens_per_s, double peak_flops) const;
  void print_memory(const std::vector<MemoryPeak>& memory);

  const RunOptions& options_;
  const JobConfig& config_;
  const Run& run_;
  // Rank 0 has these from begin() on.
  std::optional<MetricsFile> metrics_;
  std::optional<EventFile> events_;
  std::optional<Progress> progress_;
};

}  // namespace shoal::train
