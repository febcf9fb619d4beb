#include "shoal/model/mixture_tensors.h"

#include <algorithm>
#include <cmath>

namespace shoal::model {
namespace {

constexpr double kFloat = 4;
constexpr double kIndex = 8;

/// Returns this rank's rows of the residual stream, which it routes.
double routed_rows(const MicroBatch& batch) {
  return batch.rows() / static_cast<double>(batch.tensor_ranks);
}

/// Returns the rows that the experts of all ranks take of one rank's tokens at most, in the mean of
/// the ranks that have parts of the same sequences: with a capacity each expert takes so many of
/// each whole sequence.
double capacity_rows(const ModelSpec& spec, const MicroBatch& batch) {
  const double experts = static_cast<double>(spec.experts);
  const double columns = static_cast<double>(batch.columns * batch.context_ranks);
  const double mean = static_cast<double>(spec.experts_per_token) * columns / experts;
  const double capacity = std::max(1.0, std::ceil(spec.capacity_factor * mean));
  return experts * capacity * static_cast<double>(batch.samples) /
         static_cast<double>(batch.tensor_ranks * batch.context_ranks);
}

double visiting_rows(const ModelSpec& spec, const MicroBatch& batch) {
  const double all = routed_rows(batch) * static_cast<double>(spec.experts_per_token);
  return spec.capacity_factor > 0 ? std::min(all, capacity_rows(spec, batch)) : all;
}

}  // namespace

MixtureTensors::MixtureTensors(const ModelSpec& spec, const MicroBatch& batch) {
  // Bytes: e an activation, p one that was rounded for a matmul. Routers have fp32 weights.
  const double e = batch.element_bytes;
  const double p = batch.product_bytes;
  const double h = static_cast<double>(spec.hidden);
  const double f = static_cast<double>(spec.ffn);
  const double k = static_cast<double>(spec.experts_per_token);
  const double inner = spec.gated ? 2 : 1;
  const double own = routed_rows(batch);
  const double visits = visiting_rows(spec, batch);
  travels = batch.expert_ranks > 1;
  const double rows = travels ? visits * batch.expert_imbalance : visits;
  const double shared = own * static_cast<double>(spec.shared_ffn);
  input = own * h * e;
  logits = own * static_cast<double>(spec.experts) * e;
  scores = logits + own * k * (2 * kIndex + kFloat);
  // Gate and up round their input each for itself.
  copies = p < e && spec.shared_ffn > 0 ? inner * own * h * p : 0;
  arrived = rows * h * (p < e ? inner * p : e);
  sent = visits * h * e;
  results = rows * h * e;
  wide = rows * f * e * inner;
  hidden = rows * f * p;
  shared_wide = shared * e * inner;
  shared_hidden = shared * p;
  shared_result = spec.shared_ffn > 0 ? own * h * e : 0;
}

double worst_imbalance(const ModelSpec& spec, const MicroBatch& batch) {
  const double ranks = static_cast<double>(batch.expert_ranks);
  if (batch.expert_ranks == 1) return 1;
  const double here = static_cast<double>(spec.experts) / ranks;
  // The tokens of all ranks may come, and a token visits an expert once.
  double rows =
      routed_rows(batch) * ranks * std::min(static_cast<double>(spec.experts_per_token), here);
  if (spec.capacity_factor > 0) rows = std::min(rows, capacity_rows(spec, batch));
  return rows / visiting_rows(spec, batch);
}

}  // namespace shoal::model
