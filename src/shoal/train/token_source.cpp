#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <span>

#include "shoal/base/check.h"
#include "shoal/base/philox.h"
#include "shoal/train/config/job_inputs.h"
#include "shoal/train/data_source.h"

namespace shoal::train {
namespace {

using Corpora = std::vector<std::shared_ptr<const data::TokenDataset>>;

/// Token data sets: training samples in the cursor's order; evaluation samples are the windows of
/// each corpus from its first token on, the last one filled up with labels that do not count.
class TokenSource final : public DataSource {
 public:
  TokenSource(const Job& job, bool thorough)
      : length_(job.config.training.sequence_length),
        document_mask_(job.config.data.document_mask),
        tokens_(open_job_tokens(job, thorough ? data::Check::kBodies : data::Check::kHeaders)),
        cursor_(tokens_.cursor(job)) {}

  Task task() const override { return Task::kTokens; }
  DataSizes sizes() const override { return {.vocab = tokens_.train[0]->vocab_size()}; }
  std::int64_t tokens_per_sample() const override { return length_; }
  std::uint64_t fingerprint() const override { return cursor_.fingerprint(); }

  std::int64_t samples_per_epoch() const override {
    std::int64_t samples = 0;
    for (std::size_t i = 0; i < tokens_.train.size(); ++i)
      samples += static_cast<std::int64_t>(cursor_.samples_per_epoch(i));
    return samples;
  }

  Batch training(std::int64_t first, std::int64_t count) const override {
    const at::Tensor tokens = at::empty({count, length_ + 1}, at::kLong);
    for (std::int64_t i = 0; i < count; ++i) {
      cursor_.fill(cursor_.at(first + i),
                   std::span(tokens.data_ptr<std::int64_t>() + i * (length_ + 1), length_ + 1));
    }
    // Labels are the inputs one token later.
    const at::Tensor inputs = tokens.narrow(1, 0, length_).contiguous();
    return {inputs, tokens.narrow(1, 1, length_).contiguous(), 0, documents_of(inputs)};
  }

  std::int64_t evaluation_samples(const std::string& split) const override {
    std::int64_t samples = 0;
    for (const auto& corpus : corpora(split)) samples += windows(*corpus);
    return samples;
  }

  Batch evaluation(const std::string& split,
                   const std::vector<std::int64_t>& samples) const override {
    const auto rows = static_cast<std::int64_t>(samples.size());
    Batch batch{at::zeros({rows, length_}, at::kLong),
                at::full({rows, length_}, kIgnoredLabel, at::kLong),
                0,
                {}};
    for (std::int64_t i = 0; i < rows; ++i) {
      // Windows are numbered through all corpora, one after the other.
      std::int64_t window = samples[i];
      auto corpus = corpora(split).begin();
      for (; window >= windows(**corpus); ++corpus) window -= windows(**corpus);
      const std::uint64_t start = window * length_;
      // The last window of a corpus may be shorter: the rest of its labels stays ignored.
      const std::uint64_t count = std::min<std::uint64_t>(length_, (*corpus)->tokens() - 1 - start);
      (*corpus)->copy(start, std::span(batch.inputs.data_ptr<std::int64_t>() + i * length_, count));
      (*corpus)->copy(start + 1,
                      std::span(batch.labels.data_ptr<std::int64_t>() + i * length_, count));
      batch.bytes += static_cast<std::int64_t>((*corpus)->bytes_of(start + 1, count));
    }
    batch.documents = documents_of(batch.inputs);
    return batch;
  }

 private:
  /// Returns how many documents have ended before each token of a sample.
  at::Tensor documents_of(const at::Tensor& inputs) const {
    if (!document_mask_) return {};
    const std::int64_t end = tokens_.train[0]->tokenizer().end_of_document();
    const at::Tensor ends = inputs.eq(end).to(at::kInt);
    return ends.cumsum(1, at::kInt).sub_(ends);
  }

  const Corpora& corpora(const std::string& split) const {
    SHOAL_USER_CHECK(split == "train" || split == "validation", "evaluation",
                     "there is no split '{}'", split);
    return split == "train" ? tokens_.train : tokens_.validation;
  }
  std::int64_t windows(const data::TokenDataset& corpus) const {
    // ceil((tokens - 1) / length): the first token is no label.
    return (static_cast<std::int64_t>(corpus.tokens()) - 2 + length_) / length_;
  }

  std::int64_t length_;
  bool document_mask_;
  JobTokens tokens_;
  data::SampleCursor cursor_;
};

}  // namespace

std::shared_ptr<const DataSource> open_tokens(const Job& job, bool thorough) {
  return std::make_shared<TokenSource>(job, thorough);
}

}  // namespace shoal::train
