#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "shoal/train/config/job_file.h"
#include "shoal/train/config/validate.h"

namespace shoal::train {

/// Consecutive samples of a step or of an evaluation.
struct Batch {
  at::Tensor inputs;  ///< [B, T] int64 tokens or [B, F] float32 features
  at::Tensor labels;  ///< [B, T] int64, [B] int64 classes or [B, outputs] float32; -100: ignored
  std::int64_t bytes = 0;  ///< of text that the labels of an evaluation batch stand for; token data
};

/// What a model learns to give.
enum class Task { kTokens, kClasses, kRegression };

/// The data of a job, by sample number. What sample n is depends on the data, the seed and n alone:
/// not on ranks, batches or what was read before. Thread-safe.
class DataSource {
 public:
  virtual ~DataSource() = default;

  virtual Task task() const = 0;
  virtual DataSizes sizes() const = 0;
  virtual std::int64_t samples_per_epoch() const = 0;
  virtual std::int64_t tokens_per_sample() const { return 1; }  ///< 1 for a row of a table

  /// Training samples [first, first + count); numbers go on over epochs.
  virtual Batch training(std::int64_t first, std::int64_t count) const = 0;
  /// All of a split, in order and once.
  virtual std::int64_t evaluation_samples(const std::string& split) const = 0;
  /// Those samples of a split.
  virtual Batch evaluation(const std::string& split,
                           const std::vector<std::int64_t>& samples) const = 0;

  /// Names what the samples are made of: a run resumes on the same only.
  virtual std::uint64_t fingerprint() const = 0;
};

/// The label of a position that does not count.
inline constexpr std::int64_t kIgnoredLabel = -100;

/// Opens what the job names. `thorough`: every checksum, about a second per gigabyte. Throws
/// Error(input missing), Error(data), Error(config).
std::shared_ptr<const DataSource> open_data(const Job& job, bool thorough);

/// The parts of open_data. Token data: windows of training.sequence_length tokens; tables: rows.
std::shared_ptr<const DataSource> open_tokens(const Job& job, bool thorough);
std::shared_ptr<const DataSource> open_table(const Job& job);

}  // namespace shoal::train
