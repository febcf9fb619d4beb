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
  std::int64_t bytes = 0;  ///< token data: bytes of text of the labels of an evaluation batch
  /// Token data: [B, T] int32, the document of each token within its sample; undefined: attention
  /// does not ask.
  at::Tensor documents;
};

/// The kind of result that a model learns.
enum class Task { kTokens, kClasses, kRegression };

/// The data of a job, by sample number. Sample n depends on the data, the seed and n alone: not on
/// ranks, batches or earlier reads. Thread-safe.
class DataSource {
 public:
  virtual ~DataSource() = default;

  virtual Task task() const = 0;
  virtual DataSizes sizes() const = 0;
  virtual std::int64_t samples_per_epoch() const = 0;
  virtual std::int64_t tokens_per_sample() const { return 1; }  ///< 1 for a row of a table

  /// Returns training samples [first, first + count); numbers go on over epochs.
  virtual Batch training(std::int64_t first, std::int64_t count) const = 0;
  /// Returns the number of samples of a split. An evaluation may read each of them once.
  virtual std::int64_t evaluation_samples(const std::string& split) const = 0;
  /// Returns the samples of a split with these numbers.
  virtual Batch evaluation(const std::string& split,
                           const std::vector<std::int64_t>& samples) const = 0;

  /// Returns a hash of the data and its options: a run resumes only on data with the same hash.
  virtual std::uint64_t fingerprint() const = 0;
};

/// The label of a position that does not count.
inline constexpr std::int64_t kIgnoredLabel = -100;

/// Opens the data of the job. `thorough` checks every checksum, about a second per gigabyte. Throws
/// Error(input missing), Error(data), Error(config).
std::shared_ptr<const DataSource> open_data(const Job& job, bool thorough);

/// open_data calls one of these. A sample of token data is a window of training.sequence_length
/// tokens; a sample of a table is a row.
std::shared_ptr<const DataSource> open_tokens(const Job& job, bool thorough);
std::shared_ptr<const DataSource> open_table(const Job& job);

}  // namespace shoal::train
