#pragma once

#include <array>
#include <optional>
#include <string>
#include <vector>

#include "shoal/base/memory_category.h"
#include "shoal/comm/group.h"
#include "shoal/plan/memory.h"

namespace shoal::train {

/// Bytes of tensors at the worst moment of a step, in all and of that by category.
struct MemoryPeak {
  double total = 0;
  std::array<double, kMemoryCategories> categories{};
};

/// Watches what the steps of one rank take of the installed arena. Without an arena nothing is known.
/// Ranks that are threads share one arena, which rank 0 answers for; the others have nothing.
class MemoryWatch {
 public:
  MemoryWatch(const comm::Group& group, bool in_process);

  void begin_step() const;
  void end_step();
  /// Of every rank, on every rank; empty without an arena. Collective.
  std::vector<MemoryPeak> of_all_ranks() const;

 private:
  comm::Group group_;
  bool watches_, answers_;
  MemoryPeak peak_;
};

/// The sum over ranks: their worst moments are taken to be the same.
MemoryPeak sum(const std::vector<MemoryPeak>& ranks);

/// "Tensors took 1230 MB at the peak (parameters ...); planned were 1250 MB (+1.6 %)." of all ranks together.
std::string describe(const MemoryPeak& measured, std::optional<double> planned_bytes);
/// One JSON object: peak_bytes, planned_bytes (null: not planned), and by rank peak_bytes with its categories.
std::string to_json(const std::vector<MemoryPeak>& ranks, std::optional<double> planned_bytes);

}  // namespace shoal::train
