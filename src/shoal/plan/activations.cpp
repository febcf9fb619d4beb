#include <algorithm>

#include "shoal/plan/memory.h"

namespace shoal::plan {
namespace {

// Korthikanti et al., 2022, section 4.1, tensor by tensor: attention keeps 11 s b h + 5 a s^2 b
// bytes, the feed-forward layer 19 s b h, the norms 4 s b h (e = 2 bytes, masks 1).
void add_attention(const ModelSpec& spec, const Training& training, double tokens, double e,
                   std::vector<SavedTensor>& list) {
  const double h = spec.hidden;
  const double d = spec.head_size;
  const double a = spec.heads;
  const double k = spec.kv_heads;
  // A query sees the whole sequence, of all context ranks.
  const double scores = tokens * a * training.length(spec);
  list.push_back({"input of norm 1", e * tokens * h, Division::kSequence});
  list.push_back(
      {"input of the query, key and value product", e * tokens * h, Division::kSequence});
  if (spec.qk_norm)
    list.push_back({"queries and keys before their norms", e * tokens * d * (a + k)});
  list.push_back({"queries, keys and values", e * tokens * d * (a + 2 * k)});
  if (training.flash_attention) {
    // Dao et al., 2022: the scores are computed again from one fp32 number a row.
    list.push_back({"log-sum-exp of the scores", 4 * tokens * a});
  } else {
    // `core`: the part that selective recomputation drops, 5 a s^2 b of the total.
    list.push_back({"softmax", e * scores, Division::kTensor, true});
    if (spec.dropout > 0) {
      list.push_back({"mask of the softmax", scores, Division::kTensor, true});
      list.push_back({"softmax after dropout", e * scores, Division::kTensor, true});
    }
  }
  list.push_back({"input of the output product", e * tokens * a * d});
  if (spec.dropout > 0) {
    list.push_back(
        {"mask of the attention's output", tokens * h, Division::kSequence, false, true});
  }
}

void add_feed_forward(const ModelSpec& spec, const Training& training, double tokens, double e,
                      std::vector<SavedTensor>& list) {
  const double h = spec.hidden;
  const double f = spec.ffn;
  list.push_back({"input of norm 2", e * tokens * h, Division::kSequence});
  if (spec.experts > 0) {
    // Every tensor rank of an expert keeps all rows of the expert, and a slice of the results.
    // A token visits several experts, and the busiest rank has more rows than the mean.
    const double visits =
        tokens * spec.experts_per_token * training.expert_imbalance * expert_copies(training);
    const double slice = visits / static_cast<double>(training.expert_tensor);
    list.push_back({"input of the router", e * tokens * h, Division::kSequence});
    list.push_back({"router's probabilities", 4 * tokens * spec.experts, Division::kSequence});
    list.push_back({"tokens sent to experts", e * visits * h, Division::kSequence});
    list.push_back({"input of the experts' activation", e * slice * f * (spec.gated ? 2 : 1),
                    Division::kSequence});
    list.push_back({"input of the experts' down product", e * slice * f, Division::kSequence});
    list.push_back(
        {"outputs of the experts", e * visits / expert_copies(training) * h, Division::kSequence});
    if (spec.shared_ffn == 0) return;
    const double shared = static_cast<double>(spec.shared_ffn);
    list.push_back({"input of the shared experts' activation",
                    e * tokens * shared * (spec.gated ? 2 : 1), Division::kSequence});
    list.push_back(
        {"input of the shared experts' down product", e * tokens * shared, Division::kSequence});
    return;
  }
  list.push_back({"input of the up product", e * tokens * h, Division::kSequence});
  list.push_back({"input of the activation", e * tokens * f * (spec.gated ? 2 : 1)});
  list.push_back({"input of the down product", e * tokens * f});
  if (spec.dropout > 0) {
    list.push_back(
        {"mask of the feed-forward output", tokens * h, Division::kSequence, false, true});
  }
}

/// Returns by how many tensor ranks a saved tensor is divided.
double divisor(const Training& training, Division division) {
  const double t = training.degrees.tp;
  if (division == Division::kTensor) return t;
  // Each tensor rank routes its own share of the tokens when the sequence is cut.
  return training.sequence_parallel ? t : 1;
}

// Each hidden layer keeps its matmul's result and its activation, the next layer's input.
double mlp_activation_bytes(const ModelSpec& spec, const Training& training, double e) {
  double width = spec.inputs;
  for (const std::int64_t size : spec.widths) width += 2.0 * size;
  return e * training.micro_batch * width;
}

/// Returns the share of a micro-batch's activations that stays until the weight gradient. With full
/// recomputation everything is there between the two halves of a backward pass.
double kept_share(const ModelSpec& spec, const Training& training) {
  double all = 0;
  double kept = 0;
  for (const SavedTensor& tensor : saved_tensors(spec, training)) {
    // Dropped and rebuilt within the backward pass: never kept between its halves.
    if (training.recompute != Recompute::kNone && tensor.core) continue;
    all += tensor.bytes / divisor(training, tensor.division);
    if (!tensor.mask) kept += tensor.bytes / divisor(training, tensor.division);
  }
  return kept / all;
}

/// Returns the micro-batches in flight on a rank for the schedules that have a closed form. In turn
/// there is one. gpipe holds all m. 1F1B holds one for each stage from this rank to the last.
/// Interleaved holds its warm-up, counted in chunks: 2 (p - rank - 1) + (v - 1) p + 1, and all m v
/// when m = p.
double in_flight_by_form(const Training& training, std::int64_t rank) {
  const double p = training.degrees.pp;
  const double m = training.micro_batches();
  const double v = training.virtual_stages;
  if (p == 1 || training.schedule == "in_turn") return 1;
  if (training.schedule == "gpipe") return m;
  // Narayanan et al., SC 2021, section 2.2.
  if (v == 1) return std::min(m, p - rank);
  return std::min(m * v, m == p ? m * v : 2 * (p - rank - 1) + (v - 1) * p + 1) / v;
}

}  // namespace

std::vector<SavedTensor> saved_tensors(const ModelSpec& spec, const Training& training) {
  // Context ranks share the tokens of a sample.
  const double e = precision(training.precision)->activation_bytes;
  const double tokens =
      static_cast<double>(training.micro_batch) * training.length(spec) / training.degrees.cp;
  std::vector<SavedTensor> list;
  add_attention(spec, training, tokens, e, list);
  add_feed_forward(spec, training, tokens, e, list);
  return list;
}

double block_activation_bytes(const ModelSpec& spec, const Training& training,
                              Recompute recompute) {
  double bytes = 0;
  for (const SavedTensor& tensor : saved_tensors(spec, training)) {
    if (recompute == Recompute::kFull)
      return tensor.bytes / divisor(training, tensor.division);  // the block's input comes first
    if (recompute == Recompute::kSelective && tensor.core) continue;
    bytes += tensor.bytes / divisor(training, tensor.division);
  }
  return bytes;
}

double block_activation_bytes(const ModelSpec& spec, const Training& training) {
  if (spec.family == Family::kMlp)
    return mlp_activation_bytes(spec, training, precision(training.precision)->activation_bytes);
  return block_activation_bytes(spec, training, training.recompute);
}

std::vector<double> in_flight_by_rank(const ModelSpec& spec, const Training& training,
                                      ScheduleCache& cache) {
  const std::int64_t p = training.degrees.pp;
  if (has_closed_form(training)) {
    std::vector<double> ranks(p);
    for (std::int64_t rank = 0; rank < p; ++rank) ranks[rank] = in_flight_by_form(training, rank);
    return ranks;
  }
  const double kept = kept_share(spec, training);
  if (training.table) {
    // Ranks may have other numbers of stages: those of one count as equal parts of its blocks.
    const std::vector<int>& rank_of_stage = training.table->rank_of_stage;
    std::vector<schedule::StageCost> costs;
    for (const int rank : rank_of_stage) {
      const auto own = std::count(rank_of_stage.begin(), rank_of_stage.end(), rank);
      schedule::StageCost cost;
      cost.activations = 1.0 / static_cast<double>(own);
      cost.weight_store = cost.activations * kept;
      costs.push_back(cost);
    }
    return schedule::activation_peak(*training.table, {costs, 0, 0, {}});
  }
  // The schedule is simulated with few micro-batches to keep it small: 4 p of them reach the peak.
  const auto m = std::min(training.micro_batches(), 4 * p);
  return cache.activation_peaks(training.schedule, static_cast<int>(p),
                                static_cast<int>(training.chunks()), static_cast<int>(m), kept);
}

}  // namespace shoal::plan
