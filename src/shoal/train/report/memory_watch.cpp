#include "shoal/train/report/memory_watch.h"

#include <ATen/ops/zeros.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <numeric>

#include "shoal/base/units.h"
#include "shoal/comm/allocator.h"

namespace shoal::train {
namespace {

constexpr std::int64_t kColumns = kMemoryCategories + 3;

}  // namespace

MemoryWatch::MemoryWatch(const comm::Group& group, bool in_process)
    : group_(group),
      watches_(comm::installed_arena() != nullptr),
      answers_(!in_process || group.rank() == 0) {}

void MemoryWatch::record(nn::Model& model, std::int64_t steps) {
  if (!active() || steps == 0) return;
  steps_left_ = steps;
  for (const auto& unit : model.units()) {
    unit->on_post_forward(
        [this](nn::Module& module, const at::Tensor& output, const nn::Context& context) {
          // The hooks stay for the whole run and cost one comparison after the recorded steps.
          if (steps_left_ == 0) return at::Tensor();
          mark((context.recomputing ? "recompute " : "forward ") + module.path());
          // The gradient of the output is there when backward is about to enter the unit.
          if (output.requires_grad() && !context.recomputing) {
            output.register_hook(
                [this, path = module.path()](const at::Tensor&) { mark("backward " + path); });
          }
          return at::Tensor();
        });
  }
}

void MemoryWatch::begin_step(std::int64_t step, double staged_bytes) {
  if (!active()) return;
  staged_ = staged_bytes;
  // Peaks count from here: they are those of the step.
  comm::installed_arena()->reset_peaks();
  began_ = Clock::now();
  step_ = step;
  in_step_ = true;
  mark("begin");
}

/// Peaks are between marks from the first of a step that is recorded on; over the whole step in the
/// others.
void MemoryWatch::mark(const std::string& where) {
  if (steps_left_ == 0 || !in_step_) return;
  const auto arena = comm::installed_arena();
  const wire::Ledger ledger = arena->ledger();
  keep(ledger);
  marks_.push_back({.step = step_,
                    .ms = std::chrono::duration<double, std::milli>(Clock::now() - began_).count(),
                    .where = where,
                    .peak = static_cast<double>(ledger.total.peak)});
  for (int c = 0; c < kMemoryCategories; ++c)
    marks_.back().categories[c] = static_cast<double>(ledger.categories[c].in_use);
  // The next mark has the peak of what lies between.
  arena->reset_peaks();
}

bool MemoryWatch::end_step() {
  if (!active()) return false;
  mark("end");
  keep(comm::installed_arena()->ledger());
  in_step_ = false;
  return steps_left_ > 0 && --steps_left_ == 0;
}

void MemoryWatch::begin_evaluation() {
  if (active()) comm::installed_arena()->reset_peaks();
}

void MemoryWatch::end_evaluation() {
  if (!active()) return;
  const auto peak = static_cast<double>(comm::installed_arena()->ledger().total.peak);
  peak_.evaluation = std::max(peak_.evaluation, peak);
}

void MemoryWatch::keep(const wire::Ledger& ledger) {
  // Only a new peak counts, with the categories as they were at that moment.
  if (static_cast<double>(ledger.total.peak) <= peak_.total) return;
  peak_.total = static_cast<double>(ledger.total.peak);
  peak_.staged = staged_;
  for (int c = 0; c < kMemoryCategories; ++c)
    peak_.categories[c] = static_cast<double>(ledger.categories[c].at_peak);
}

std::vector<MemoryPeak> MemoryWatch::of_all_ranks() const {
  // Each rank fills its own row, and the sum is the whole table. A rank that records nothing leaves
  // zeros.
  const at::Tensor table = at::zeros({group_.size(), kColumns}, at::kDouble);
  double* own = table.data_ptr<double>() + group_.rank() * kColumns;
  own[0] = peak_.total;
  own[1] = peak_.staged;
  own[2] = peak_.evaluation;
  std::copy(peak_.categories.begin(), peak_.categories.end(), own + 3);
  group_.all_reduce(table);
  std::vector<MemoryPeak> ranks;
  for (int rank = 0; rank < group_.size(); ++rank) {
    const double* row = table.const_data_ptr<double>() + rank * kColumns;
    if (row[0] == 0) continue;
    ranks.push_back({row[0], row[1], row[2], {}});
    std::copy(row + 3, row + kColumns, ranks.back().categories.begin());
  }
  return ranks;
}

MemoryPeak sum(const std::vector<MemoryPeak>& ranks) {
  MemoryPeak all;
  for (const MemoryPeak& rank : ranks) {
    all.total += rank.total;
    all.staged += rank.staged;
    all.evaluation += rank.evaluation;
    for (int c = 0; c < kMemoryCategories; ++c) all.categories[c] += rank.categories[c];
  }
  return all;
}

std::string describe(const MemoryPeak& measured, std::optional<double> planned_bytes) {
  std::vector<std::string> parts;
  for (int c = 0; c < kMemoryCategories; ++c) {
    if (measured.categories[c] >= 0.01 * measured.total) {
      parts.push_back(fmt::format("{} {:.4g}", name(static_cast<MemoryCategory>(c)),
                                  measured.categories[c] / kMB));
    }
  }
  const std::string took = fmt::format("Tensors took {:.4g} MB at the peak ({})",
                                       measured.total / kMB, fmt::join(parts, ", "));
  const std::string copies =
      measured.staged > 0
          ? fmt::format(", {:.4g} MB of them copies for a checkpoint", measured.staged / kMB)
          : "";
  if (!planned_bytes) return took + copies + ".";
  const double over = 100 * ((measured.total - measured.staged) / *planned_bytes - 1);
  return took + copies +
         fmt::format("; planned were {:.4g} MB: {:.1f} % {} the plan.", *planned_bytes / kMB,
                     std::abs(over), over > 0 ? "over" : "under");
}

std::string to_json(const std::vector<MemoryPeak>& ranks,
                    const std::vector<double>& planned_bytes) {
  const MemoryPeak all = sum(ranks);
  const double planned = std::reduce(planned_bytes.begin(), planned_bytes.end());
  nlohmann::ordered_json json{{"peak_bytes", all.total},
                              {"staged_bytes", all.staged},
                              {"planned_bytes", nullptr},
                              {"evaluation_peak_bytes", all.evaluation},
                              {"ranks", nlohmann::ordered_json::array()}};
  if (!planned_bytes.empty()) json["planned_bytes"] = planned;
  for (std::size_t i = 0; i < ranks.size(); ++i) {
    const MemoryPeak& rank = ranks[i];
    json["ranks"].push_back({{"peak_bytes", rank.total},
                             {"staged_bytes", rank.staged},
                             {"planned_bytes", nullptr},
                             {"evaluation_peak_bytes", rank.evaluation}});
    nlohmann::ordered_json& one = json["ranks"].back();
    if (!planned_bytes.empty())
      one["planned_bytes"] = ranks.size() == planned_bytes.size() ? planned_bytes[i] : planned;
    for (int c = 0; c < kMemoryCategories; ++c)
      one[name(static_cast<MemoryCategory>(c))] = rank.categories[c];
  }
  return json.dump(2) + "\n";
}

}  // namespace shoal::train
