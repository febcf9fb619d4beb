#include "shoal/forecast/attention_memory.h"

#include <algorithm>

namespace shoal::forecast {
namespace {

constexpr double kFloat = 4;
/// Rows of queries whose scores exist at a time (ops/attention_blocks.cpp).
constexpr std::int64_t kScoreRows = 192;

/// Bytes of the tensors of one rank's attention.
struct AttentionTensors {
  double queries;  ///< as many as of the result
  double keys;     ///< one block of keys and values
  double qkv;
  double log_sums;
  double groups;  ///< key-value heads of this rank
  double head_size;

  AttentionTensors(const ModelSpec& spec, const MicroBatch& batch) {
    const auto tensor = static_cast<double>(batch.tensor_ranks);
    const double heads = static_cast<double>(spec.heads) / tensor;
    head_size = static_cast<double>(spec.head_size);
    groups = std::max(static_cast<double>(spec.kv_heads) / tensor, 1.0);
    queries = kFloat * batch.rows() * heads * head_size;
    keys = kFloat * batch.rows() * 2 * groups * head_size;
    qkv = queries + keys;
    log_sums = kFloat * batch.rows() * heads;
  }
};

/// Returns the elements of the scores that exist at once, of `length` tokens that see those before
/// them: the last whole block of rows, or the rest of the rows, which sees all.
double causal_scores(std::int64_t length) {
  const std::int64_t whole = length / kScoreRows * kScoreRows;
  return static_cast<double>(std::max(kScoreRows * whole, (length - whole) * length));
}

/// Returns the bytes of scores, of their gradients, and of packed operands, on all threads.
double workspace(double scores, std::int64_t keys, double head_size, double threads) {
  const auto width = static_cast<double>(keys);
  const double rows = std::min<double>(kScoreRows, width);
  const double products =
      std::max({packed_operands(rows, width, head_size), packed_operands(rows, head_size, width),
                packed_operands(width, head_size, rows)});
  return threads * (2 * kFloat * scores + products);
}

/// Keys and values of the ranks go round: each rank computes with one block while the next arrives,
/// and the gradient of each block follows it (parallel/context/ring_attention.cpp). Ranks that read
/// keys and values in place have no blocks but of gradients.
double ring(const AttentionTensors& t, const MicroBatch& batch, double threads, bool in_place) {
  const std::int64_t ranks = batch.context_ranks;
  const std::int64_t length = batch.columns;
  const double own =
      (in_place ? 0 : 2 * t.keys) + workspace(causal_scores(length), length, t.head_size, threads);
  // Every row may see all keys of another rank's block. Beside it lie its gradient, and that of the
  // queries. From the second such block on there are two more: the sum of the ranks before, which
  // arrives, and the gradient that was sent last, which may not have been taken. The last block is
  // followed by none.
  const double gradients = 1 + (ranks > 2 ? 2 : 0);
  const double blocks = gradients + (in_place ? 0 : 1 + (ranks > 3 ? 1 : 0));
  const double rows = static_cast<double>(std::min(kScoreRows, length) * length);
  const double others = blocks * t.keys + t.queries + workspace(rows, length, t.head_size, threads);
  return t.queries + t.qkv + std::max(own, others);
}

/// Whole sequences of some heads. An exchange packs what it sends, receives, and unpacks; ranks
/// that share memory copy from where it lies.
double exchanged_heads(const AttentionTensors& t, const MicroBatch& batch, double threads,
                       bool in_place) {
  const std::int64_t length = batch.columns * batch.context_ranks;
  const double tensors = in_place ? 2 : 4;
  const double result = tensors * t.queries;
  const double attention =
      t.queries + t.qkv + workspace(causal_scores(length), length, t.head_size, threads);
  // When the gradient travels back, what attention kept is free.
  const double gradient = tensors * t.qkv - (t.qkv + t.queries + t.log_sums);
  return std::max({result, attention, gradient});
}

}  // namespace

double packed_operands(double rows, double columns, double depth) {
  return kFloat * (std::min(rows, 1536.0) + std::min(columns, 320.0)) * std::min(depth, 512.0);
}

double attention_backward(const ModelSpec& spec, const MicroBatch& batch, std::int64_t threads,
                          bool in_place) {
  const AttentionTensors t(spec, batch);
  const bool exchanges = batch.context_ranks > 1 && batch.exchanges_heads;
  // A task is one key-value head of one sample, and a thread has workspace for one.
  const double heads = exchanges ? t.groups / static_cast<double>(batch.context_ranks) : t.groups;
  const double tasks = std::max(static_cast<double>(batch.samples) * heads, 1.0);
  const double at_work = std::min(static_cast<double>(threads), tasks);
  if (exchanges) return exchanged_heads(t, batch, at_work, in_place);
  if (batch.context_ranks > 1) return ring(t, batch, at_work, in_place);
  return t.queries + t.qkv +
         workspace(causal_scores(batch.columns), batch.columns, t.head_size, at_work);
}

}  // namespace shoal::forecast
