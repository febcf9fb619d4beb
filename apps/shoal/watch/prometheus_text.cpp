#include "apps/shoal/watch/prometheus_text.h"

#include <fmt/format.h>

#include <array>
#include <cmath>
#include <optional>
#include <set>
#include <vector>

#include "shoal/base/memory_category.h"

namespace shoal::apps {
namespace {

struct Sample {
  std::string labels;  ///< without braces: rank="0"; values here need no escapes
  double value = 0;
};

std::string number(double value) {
  if (std::isnan(value)) return "NaN";
  if (std::isinf(value)) return value > 0 ? "+Inf" : "-Inf";
  return fmt::format("{:.17g}", value);
}

class Page {
 public:
  void metric(const char* name, const char* type, const char* help,
              const std::vector<Sample>& samples) {
    if (samples.empty()) return;
    text_ += fmt::format("# HELP {} {}\n# TYPE {} {}\n", name, help, name, type);
    for (const Sample& sample : samples) {
      const std::string labels = sample.labels.empty() ? "" : "{" + sample.labels + "}";
      text_ += fmt::format("{}{} {}\n", name, labels, number(sample.value));
    }
  }
  void gauge(const char* name, const char* help, const std::vector<Sample>& samples) {
    metric(name, "gauge", help, samples);
  }
  void gauge(const char* name, const char* help, const std::optional<double>& value) {
    if (value) gauge(name, help, std::vector<Sample>{{"", *value}});
  }
  const std::string& text() const { return text_; }

 private:
  std::string text_;
};

void add_run(Page& page, const RunSummary& run) {
  page.gauge("shoal_step", "Training steps that are complete.", static_cast<double>(run.steps()));
  const auto total = static_cast<double>(run.total_steps());
  page.gauge("shoal_planned_steps", "Training steps of the whole run.",
             total > 0 ? std::optional(total) : std::nullopt);
  page.gauge("shoal_remaining_seconds", "Time to the last step at the mean speed so far.",
             run.seconds_left());
  if (run.checkpoint) {
    page.gauge("shoal_checkpoint_step", "Step of the newest complete checkpoint.",
               static_cast<double>(*run.checkpoint));
  }
  std::vector<Sample> phases;
  for (const char* phase : {"starting", "training", "evaluating", "saving", "ending"}) {
    phases.push_back(
        {fmt::format("phase=\"{}\"", phase), run.job && run.job->phase == phase ? 1.0 : 0.0});
  }
  page.gauge("shoal_phase", "What the run is doing: 1 for the phase, 0 for the others.", phases);
}

void add_step(Page& page, const train::StepMetrics& m) {
  page.gauge("shoal_loss", "Training loss of the last step, a mean over its labels.", m.loss);
  page.gauge("shoal_learning_rate", "Learning rate of the last step.", m.lr);
  page.gauge("shoal_gradient_norm", "Norm of the whole gradient before clipping.", m.grad_norm);
  page.metric("shoal_tokens_total", "counter", "Tokens (rows of a table) that were trained.",
              {{"", static_cast<double>(m.tokens)}});
  page.gauge("shoal_tokens_per_second", "Speed of the last step, all ranks together.",
             m.tokens_per_s);
  page.gauge("shoal_step_duration_seconds", "Duration of the last step on rank 0.", m.step_s);
  page.gauge("shoal_model_flops_utilization",
             "Model FLOPs a second over the FLOP/s of plain float32 loops, from 0 to 1.", m.mfu);
  page.gauge("shoal_data_wait_seconds", "Time of a step in which ranks read samples, a mean.",
             m.data_wait_s);
  page.gauge("shoal_communication_exposed_seconds",
             "Time of a step in which ranks communicated and computed nothing, a mean.",
             m.comm_exposed_s);
  page.gauge("shoal_loss_scale", "Loss scale of fp16.", m.loss_scale);
  if (!m.memory_bytes) return;
  std::vector<Sample> categories;
  for (std::size_t c = 0; c < m.memory.size(); ++c) {
    categories.push_back(
        {fmt::format("category=\"{}\"", name(static_cast<MemoryCategory>(c))), m.memory[c]});
  }
  page.gauge("shoal_tensor_memory_bytes", "Peak of the tensors of all ranks, by category.",
             categories);
}

void add_evaluation(Page& page, const train::StepMetrics& step) {
  page.gauge("shoal_validation_loss", "Loss of the last validation.", step.evaluation->loss);
  page.gauge("shoal_validation_step", "Step after which it was measured.",
             static_cast<double>(step.step));
}

void add_ranks(Page& page, const JobStatus& job) {
  std::vector<Sample> steps;
  std::vector<Sample> ages;
  std::vector<Sample> running;
  std::vector<Sample> memory;
  std::set<int> processes;
  for (const RankStatus& rank : job.ranks) {
    if (rank.process == 0) continue;
    const std::string label = fmt::format("rank=\"{}\"", rank.rank);
    steps.push_back({label, static_cast<double>(rank.step)});
    if (rank.age_s >= 0) ages.push_back({label, rank.age_s});
    running.push_back({label, rank.state == ProcessState::kRunning ? 1.0 : 0.0});
    // Ranks that are threads share a process: its memory stands once, with the first of them.
    if (processes.insert(rank.process).second)
      memory.push_back({label, static_cast<double>(rank.resident_bytes)});
  }
  page.gauge("shoal_rank_step", "Current step of the rank, counted from 1.", steps);
  page.gauge("shoal_rank_idle_seconds", "Time since the rank last went on.", ages);
  page.gauge("shoal_rank_running", "1 while the process of the rank runs, 0 when it is stopped.",
             running);
  page.gauge("shoal_memory_bytes",
             "Resident memory of the process of the rank, with what it shares.", memory);
}

}  // namespace

std::string prometheus_text(const RunSummary& run) {
  Page page;
  add_run(page, run);
  if (!run.recent.empty()) add_step(page, run.recent.back());
  if (const train::StepMetrics* step = run.last_evaluated()) add_evaluation(page, *step);
  if (run.job) add_ranks(page, *run.job);
  return page.text();
}

}  // namespace shoal::apps
