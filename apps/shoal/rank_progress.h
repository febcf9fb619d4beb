#pragma once

#include <atomic>
#include <cstdint>

namespace shoal::apps {

/// Step counters, one for each rank, in memory that the launcher shares with its ranks: it can then
/// say in which step a rank died.
class RankProgress {
 public:
  /// Makes new counters, all 0, for `ranks` ranks. Throws Error(resource).
  explicit RankProgress(int ranks);
  /// Maps the counters behind an inherited descriptor. Throws Error(resource).
  RankProgress(int descriptor, int ranks);
  ~RankProgress();
  RankProgress(const RankProgress&) = delete;
  RankProgress& operator=(const RankProgress&) = delete;

  int descriptor() const { return descriptor_; }
  std::atomic<std::int64_t>& of(int rank) { return steps_[rank]; }

 private:
  void map(int ranks);

  int descriptor_;
  std::size_t bytes_ = 0;
  std::atomic<std::int64_t>* steps_ = nullptr;
};

}  // namespace shoal::apps
