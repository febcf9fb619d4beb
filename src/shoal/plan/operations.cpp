#include "shoal/plan/operations.h"

#include <algorithm>

#include "shoal/plan/topology.h"

namespace shoal::plan {
namespace {

/// Sizes of one micro-batch on one rank.
struct Sizes {
  double tokens;
  double cut_tokens;
  double length;
  double h;
  double t;
  double e;

  Sizes(const ModelSpec& spec, const Training& training)
      : tokens(static_cast<double>(training.micro_batch) * training.length(spec) /
               training.degrees.cp),
        cut_tokens(training.sequence_parallel ? tokens / training.degrees.tp : tokens),
        length(training.length(spec)),
        h(spec.hidden),
        t(training.degrees.tp),
        e(precision(training.precision)->activation_bytes) {}
};

OperationCost product(const char* what, double flops, double count = 1) {
  return {what, true, flops, flops, flops, count, false};
}
OperationCost traversal(const char* what, double forward, double backward) {
  return {what, false, forward, backward, 0, 1, false};
}

/// The fp32 operations of a softmax for one score: scale, maximum, difference and sum, and an
/// exponential, which special units compute at an eighth of the rate of additions. Dao,
/// "FlashAttention-2", 2023, section 3.1, on what does not run on tensor cores.
constexpr double kSoftmaxOperations = 14;

/// Adds the two matmuls and, unless they are fused, the softmax between them.
void add_attention_core(const ModelSpec& spec, const Training& training, const Sizes& n,
                        std::vector<OperationCost>& list) {
  const double width = static_cast<double>(spec.heads) * spec.head_size / n.t;
  // One of the two matmuls: scores = q k^T takes 2 d FLOPs a score, values = p v as many.
  const double flops = 2 * n.tokens * n.length * width;
  const double scores = n.tokens * spec.heads * n.length / n.t;
  if (training.flash_attention) {
    // One kernel, counted with all scores; `sum` leaves out the masked half. The backward pass
    // computes the scores again: five matmuls for two.
    list.push_back(
        {"attention", true, 2 * flops, 5 * flops, 0, 1, true, 0, kSoftmaxOperations * scores});
    return;
  }
  // A score takes 2 d FLOPs only: matmuls of heads this narrow wait for the memory of the scores.
  list.push_back({"scores", true, flops, 2 * flops, 0, 1, true, n.e * scores});
  list.push_back({"values", true, flops, 2 * flops, 0, 1, true, n.e * scores});
  list.push_back({"softmax", false, 2 * n.e * scores, 3 * n.e * scores, 0, 1, true});
  if (spec.dropout > 0) {
    list.push_back(
        {"dropout of scores", false, (2 * n.e + 1) * scores, (2 * n.e + 1) * scores, 0, 1, true});
  }
}

void add_experts(const ModelSpec& spec, const Training& training, const Sizes& n,
                 std::vector<OperationCost>& list) {
  const double local = static_cast<double>(spec.experts) / training.degrees.ep;
  // Rows arrive at every tensor rank of an expert, which multiplies them by a slice of its width.
  const double visits =
      n.cut_tokens * spec.experts_per_token * training.expert_imbalance * expert_copies(training);
  const double flops = 2 * visits * n.h * spec.ffn / training.expert_tensor;
  list.push_back(product("router", 2 * n.cut_tokens * n.h * spec.experts));
  // Rows are sorted by expert and sorted back, a read and a write each.
  list.push_back(traversal("permutation", 4 * n.e * visits * n.h, 4 * n.e * visits * n.h));
  // As many matmuls as experts on this rank: each loses its own ramp, which many small ones feel.
  list.push_back(product("experts, up", flops / local, local));
  if (spec.gated) list.push_back(product("experts, gate", flops / local, local));
  const double width = visits * spec.ffn / training.expert_tensor;
  list.push_back(traversal("activation", (spec.gated ? 3 : 2) * n.e * width,
                           (spec.gated ? 5 : 3) * n.e * width));
  list.push_back(product("experts, down", flops / local, local));
  if (spec.shared_ffn == 0) return;
  // Each rank runs them on its own tokens.
  const double shared = n.cut_tokens * static_cast<double>(spec.shared_ffn);
  list.push_back(product("shared experts, up", 2 * n.h * shared * (spec.gated ? 2 : 1)));
  list.push_back(traversal("shared activation", (spec.gated ? 3 : 2) * n.e * shared,
                           (spec.gated ? 5 : 3) * n.e * shared));
  list.push_back(product("shared experts, down", 2 * n.h * shared));
}

/// Returns the seconds of `share` of one pass of an operation: its `work`, and `passes` times the
/// bytes that it moves.
double seconds(const Cluster& cluster, ElementType type, const OperationCost& operation,
               double work, double passes, double share = 1) {
  if (work == 0) return 0;
  if (!operation.product) return operation.count * memory_s(cluster, share * work);
  double time = product_s(cluster, type, share * work);
  // Computing and moving overlap within a kernel: the slower of the two counts.
  if (operation.moved > 0)
    time = std::max(time, memory_s(cluster, share * passes * operation.moved));
  const auto plain = cluster.device.peak_flops.find(ElementType::kF32);
  // The softmax of a fused kernel takes its time on top of the matmuls.
  if (operation.vector > 0 && plain != cluster.device.peak_flops.end())
    time += share * operation.vector / plain->second;
  return operation.count * time;
}

/// Sums kernels. Flash attention skips the masked half of its work.
PieceTime sum(const std::vector<OperationCost>& list, const Training& training,
              const Cluster& cluster) {
  const ElementType type = precision(training.precision)->compute;
  // Attention does not run in 8 bits.
  const ElementType core_type = type == ElementType::kF8E4M3 ? ElementType::kBF16 : type;
  PieceTime time;
  for (const OperationCost& operation : list) {
    const ElementType own = operation.core ? core_type : type;
    const double skipped = operation.core && training.flash_attention ? 0.5 : 1;
    const double forward = seconds(cluster, own, operation, operation.work, 1, skipped);
    time.forward += forward;
    time.input_gradient += seconds(cluster, own, operation, operation.backward, 2, skipped);
    time.weight_gradient += seconds(cluster, own, operation, operation.weights, 1);
    const bool again = training.recompute == Recompute::kFull ||
                       (training.recompute == Recompute::kSelective && operation.core);
    if (again) time.recomputed += forward;
  }
  return time;
}

/// Returns the time of the exchange with experts. `there` and `back` are bytes of an element.
double experts_exchange_s(const ModelSpec& spec, const Training& training, const Cluster& cluster,
                          const Sizes& n, double there, double back) {
  if (spec.experts == 0) return 0;
  // The busiest rank sets the time: it gets `expert_imbalance` times the mean.
  const double elements = n.cut_tokens * spec.experts_per_token * training.expert_imbalance * n.h;
  const GroupShape group = expert_group(cluster, training);
  // Between the two exchanges the tensor ranks of an expert gather each other's rows and scatter
  // the sums of their results.
  const double rows = n.e * elements * expert_copies(training);
  const double slices = 2 * all_gather_s(cluster, expert_tensor_group(cluster, training), rows);
  // Dispatch, exchange within an expert, combine.
  return all_to_all_s(cluster, group, there * elements) + slices +
         all_to_all_s(cluster, group, back * elements);
}

/// Returns the time of the exchanges of one block's forward pass but those of its experts. The
/// backward pass has as many.
double forward_exchange_s(const ModelSpec& spec, const Training& training, const Cluster& cluster,
                          const Sizes& n) {
  const Degrees& degrees = training.degrees;
  double s = 0;
  const double activation = n.e * n.tokens * n.h;
  // Megatron-LM: one all-reduce behind attention and one behind the feed-forward layer, or with
  // sequence parallelism a reduce-scatter and an all-gather, which cost the same. A mixture
  // exchanges its experts' rows elsewhere.
  if (!training.overlap_tensor) {
    const double one = all_reduce_s(cluster, tensor_group(cluster, degrees), activation);
    s += (spec.experts > 0 ? 1 : 2) * one;
  }
  const double kv = 2 * n.e * n.tokens * spec.kv_heads * spec.head_size / n.t;
  const double queries = n.e * n.tokens * spec.heads * spec.head_size / n.t;
  const GroupShape context = context_group(cluster, degrees);
  // Ulysses exchanges queries, keys and values before attention and its output after it; otherwise
  // keys and values of all context ranks are gathered.
  s += training.ulysses
           ? all_to_all_s(cluster, context, queries + kv) + all_to_all_s(cluster, context, queries)
           : all_gather_s(cluster, context, kv * static_cast<double>(degrees.cp));
  return s;
}

}  // namespace

double product_s(const Cluster& cluster, ElementType type, double flops) {
  const Efficiency& efficiency = cluster.device.efficiency;
  // Hockney: the ramp is work lost to filling the device, so small matmuls reach a smaller share of
  // the peak.
  return (flops + efficiency.matmul_ramp_flops) / (cluster.peak(type) * efficiency.matmul) +
         efficiency.operation_s;
}

double memory_s(const Cluster& cluster, double bytes) {
  const Efficiency& efficiency = cluster.device.efficiency;
  return bytes / (cluster.device.memory_bandwidth * efficiency.memory) + efficiency.operation_s;
}

PieceTime& PieceTime::operator+=(const PieceTime& other) {
  forward += other.forward;
  input_gradient += other.input_gradient;
  weight_gradient += other.weight_gradient;
  recomputed += other.recomputed;
  communication += other.communication;
  return *this;
}

PieceTime PieceTime::operator*(double times) const {
  return {forward * times, input_gradient * times, weight_gradient * times, recomputed * times,
          communication * times};
}

std::vector<OperationCost> block_operations(const ModelSpec& spec, const Training& training) {
  if (spec.family == Family::kMlp) return {};
  const Sizes n(spec, training);
  const double residual = n.cut_tokens * n.h;
  const double mask = spec.dropout > 0 ? 1 : 0;
  const double queries = static_cast<double>(spec.heads) * spec.head_size;
  const double keys = static_cast<double>(spec.kv_heads) * spec.head_size;
  std::vector<OperationCost> list;
  // Bytes of each pass over memory: forward, a norm reads its tensor and writes one.
  list.push_back(traversal("norm 1", 2 * n.e * residual, 4 * n.e * residual));
  list.push_back(product("queries, keys, values", 2 * n.tokens * n.h * (queries + 2 * keys) / n.t));
  if (spec.qk_norm) {
    const double normed = n.e * n.tokens * (queries + keys) / n.t;
    list.push_back(traversal("norms of queries and keys", 2 * normed, 3 * normed));
  }
  if (spec.positions == Positions::kRotary) {
    const double turned = 2 * n.e * n.tokens * (queries + keys) / n.t;
    list.push_back(traversal("rotary positions", turned, turned));
  }
  add_attention_core(spec, training, n, list);
  list.push_back(product("attention, out", 2 * n.tokens * queries / n.t * n.h));
  list.push_back(traversal("residual 1", (3 * n.e + mask) * residual, (2 * n.e + mask) * residual));
  list.push_back(traversal("norm 2", 2 * n.e * residual, 4 * n.e * residual));
  if (spec.experts > 0) {
    add_experts(spec, training, n, list);
  } else {
    const double width = n.tokens * spec.ffn / n.t;
    list.push_back(product("up", 2 * width * n.h));
    if (spec.gated) list.push_back(product("gate", 2 * width * n.h));
    list.push_back(traversal("activation", (spec.gated ? 3 : 2) * n.e * width,
                             (spec.gated ? 5 : 3) * n.e * width));
    list.push_back(product("down", 2 * width * n.h));
  }
  list.push_back(traversal("residual 2", (3 * n.e + mask) * residual, (2 * n.e + mask) * residual));
  return list;
}

std::vector<OperationCost> head_operations(const ModelSpec& spec, const Training& training) {
  const Sizes n(spec, training);
  if (spec.family == Family::kMlp) {
    std::vector<OperationCost> list;
    double in = spec.inputs;
    const auto layer = [&](double out) {
      list.push_back(product("layer", 2.0 * training.micro_batch * in * out));
      list.push_back(traversal("activation", 2 * n.e * training.micro_batch * out,
                               3 * n.e * training.micro_batch * out));
      in = out;
    };
    for (const std::int64_t width : spec.widths) layer(static_cast<double>(width));
    layer(static_cast<double>(spec.outputs));
    return list;
  }
  const double logits = n.tokens * spec.vocab / n.t;
  return {traversal("final norm", 2 * n.e * n.cut_tokens * n.h, 4 * n.e * n.cut_tokens * n.h),
          product("logits", 2 * logits * n.h),
          // The traversals of Megatron's vocabulary-parallel loss: to fp32, maximum, difference,
          // exponentials, their sum, quotient; the gradient in fp32 and back.
          traversal("cross-entropy", (n.e + 36) * logits, (n.e + 12) * logits)};
}

std::vector<OperationCost> embedding_operations(const ModelSpec& spec, const Training& training) {
  if (spec.family == Family::kMlp) return {};
  const Sizes n(spec, training);
  return {traversal("embedding", 3 * n.e * n.tokens * n.h, 2 * n.e * n.tokens * n.h)};
}

PieceTime block_time(const ModelSpec& spec, const Training& training, const Cluster& cluster) {
  if (spec.family == Family::kMlp) return {};
  PieceTime time = sum(block_operations(spec, training), training, cluster);
  const Sizes n(spec, training);
  const double both = forward_exchange_s(spec, training, cluster, n);
  const double exchange =
      both + experts_exchange_s(spec, training, cluster, n,
                                precision(training.precision)->dispatch_bytes, n.e);
  const double back = both + experts_exchange_s(spec, training, cluster, n, n.e, n.e);
  time.forward += exchange;
  time.input_gradient += back;
  time.communication = exchange + back;
  // A recomputed block runs forward just before its backward pass, within the time of the backward
  // stage.
  time.input_gradient += time.recomputed;
  // The repeated forward pass exchanges again.
  if (training.recompute == Recompute::kFull) {
    time.input_gradient += exchange;
    time.communication += exchange;
  }
  return time;
}

PieceTime head_time(const ModelSpec& spec, const Training& training, const Cluster& cluster) {
  Training once = training;
  once.recompute = Recompute::kNone;
  PieceTime time = sum(head_operations(spec, once), once, cluster);
  if (spec.family == Family::kMlp) return time;
  const Sizes n(spec, training);
  const GroupShape group = tensor_group(cluster, training.degrees);
  const double input = all_reduce_s(cluster, group, n.e * n.tokens * n.h);
  // Maximum, sum of exponentials and the label's logit of the split vocabulary, one fp32 number a
  // token each.
  const double loss = 3 * all_reduce_s(cluster, group, 4 * n.tokens);
  time.forward += loss;
  time.input_gradient += input;
  time.communication = loss + input;
  return time;
}

PieceTime embedding_time(const ModelSpec& spec, const Training& training, const Cluster& cluster) {
  if (spec.family == Family::kMlp) return {};
  Training once = training;
  once.recompute = Recompute::kNone;
  PieceTime time = sum(embedding_operations(spec, once), once, cluster);
  const Sizes n(spec, training);
  const double exchange =
      all_reduce_s(cluster, tensor_group(cluster, training.degrees), n.e * n.tokens * n.h);
  time.forward += exchange;
  time.communication = exchange;
  return time;
}

double optimizer_bytes(const Training& training) {
  const Precision number = *precision(training.precision, training.optimizer);
  // The update reads weight, gradient and moments and writes weight and moments; the norm reads the
  // gradient once before.
  // Bytes of a parameter in fp32: 4 for the norm, 12 for weight and gradient; moments count twice.
  double bytes = 4 + 12 + 2 * number.state.moments;
  if (number.state.master > 0) bytes += 4 + number.state.parameter;  // master to parameter
  if (number.state.gradient == 2) bytes += 2 + 4;                    // gradient to fp32
  if (number.compute == ElementType::kF16) bytes += 4 + 4;  // the loss scale is divided out
  return bytes;
}

}  // namespace shoal::plan
