#include "shoal/forecast/unit_times.h"

#include <fmt/format.h>

#include <algorithm>

#include "shoal/base/error.h"
#include "shoal/forecast/memory.h"
#include "shoal/forecast/unit_moments.h"

namespace shoal::forecast {

using model::Boundary;
using model::parts_at;

namespace {

/// The products of the head in its kernel: logits, the gradient of its input and that of its
/// weight.
constexpr double kHeadProducts = 3;

}  // namespace

double kernel_seconds(const Cluster& cluster, const std::string& name,
                      const plan::KernelWork& work) {
  const auto found = cluster.kernels.find(name);
  if (found != cluster.kernels.end()) return found->second.seconds(work);
  throw Error(ErrorKind::kConfig, "cluster",
              fmt::format("{}: kernels.{} is missing", cluster.name, name))
      .hint("run `shoal plan calibrate` anew, with as many ranks as the job has on a host");
}

UnitTime& UnitTime::operator+=(const UnitTime& other) {
  forward += other.forward;
  input_gradient += other.input_gradient;
  weight_gradient += other.weight_gradient;
  exchanged += other.exchanged;
  recomputed += other.recomputed;
  return *this;
}

UnitTimes::UnitTimes(const ModelSpec& spec, const Training& training, const Cluster& cluster)
    : spec_(spec),
      training_(training),
      cluster_(cluster),
      batch_(micro_batch(spec, training)),
      rows_(batch_.rows()),
      tensor_(static_cast<double>(training.degrees.tp)),
      of_type_(training.precision == "bf16" ? "_bf16" : ""),
      move_(training, cluster, rows_),
      head_(plan::head_products(plan::head_rows(spec, training),
                                plan::recomputes_logits(spec, training))) {}

double UnitTimes::expert_rows() const {
  const double busiest = training_.degrees.ep > 1 ? training_.expert_imbalance : 1;
  return own_rows() * static_cast<double>(spec_.experts_per_token) * busiest;
}

double UnitTimes::qkv() const {
  return static_cast<double>((spec_.heads + 2 * spec_.kv_heads) * spec_.head_size);
}

double UnitTimes::own_qkv() const {
  const double pairs = std::max(static_cast<double>(spec_.kv_heads) / tensor_, 1.0);
  return (static_cast<double>(spec_.heads) / tensor_ + 2 * pairs) *
         static_cast<double>(spec_.head_size);
}

double UnitTimes::heads_taken(std::int64_t block) const {
  const Boundary taken = division_of(block).qkv.output;
  if (taken == Boundary::kFeatures) return rows_ * own_qkv();
  return qkv() * (taken == Boundary::kStream ? own_rows() : rows_);
}

double UnitTimes::message() const {
  return kernel("message", plan::memory_work(own_rows() * width()));
}

/// Returns the time of a feed-forward layer: up, with gate where there is one; down.
double UnitTimes::feed_forward(const std::string& name, double rows, double features) const {
  return (spec_.gated ? 2 : 1) * kernel(name, plan::linear_work(rows, width(), features)) +
         kernel(name, plan::linear_work(rows, features, width()));
}

/// Returns the time of the products of a mixture: those of this rank's experts on the rows that
/// come to them, and of the shared ones. The router's are in its own kernel.
double UnitTimes::mixture_products(const std::string& pass) const {
  const double here =
      static_cast<double>(spec_.experts) / static_cast<double>(training_.degrees.ep);
  const std::string name = "grouped" + pass + of_type_;
  const auto features = static_cast<double>(spec_.ffn);
  const double routed =
      (spec_.gated ? 2 : 1) *
          kernel(name, plan::grouped_work(expert_rows(), here, width(), features)) +
      kernel(name, plan::grouped_work(expert_rows(), here, features, width()));
  if (spec_.shared_ffn == 0) return routed;
  return routed + feed_forward("linear" + pass + of_type_, own_rows(),
                               static_cast<double>(spec_.shared_ffn));
}

/// Returns the time of a linear layer's product: a whole weight multiplies the rank's rows of the
/// stream, a part of one all rows.
double UnitTimes::linear(const std::string& name, const model::DividedLinear& layer, double in,
                         double out) const {
  if (!layer.weight_cut()) return kernel(name, plan::linear_work(own_rows(), in, out));
  if (layer.needs == Boundary::kReplicate)
    return kernel(name, plan::linear_work(rows_, in, out / tensor_));
  return kernel(name, plan::linear_work(rows_, in / tensor_, out));
}

// The linear layers of a block: queries, keys and values; output; the feed-forward layer or the
// mixture.
double UnitTimes::products(const std::string& pass, std::int64_t block) const {
  const std::string name = "linear" + pass + of_type_;
  const model::BlockDivision division = division_of(block);
  // Ranks that share a key-value head compute it whole.
  const bool by_heads = division.qkv.needs == Boundary::kReplicate;
  const double all = by_heads ? own_qkv() * tensor_ : qkv();
  const double attention =
      linear(name, division.qkv, width(), all) + linear(name, division.out, queries(), width());
  if (experts_in(block)) return attention + mixture_products(pass);
  return attention + (spec_.gated ? linear(name, division.gate, width(), ffn()) : 0) +
         linear(name, division.up, width(), ffn()) + linear(name, division.down, ffn(), width());
}

void UnitTimes::add_moves(const model::DividedLinear& layer, double in, double out,
                          Moves& sum) const {
  const double read = move_.forward(layer.input, layer.needs, in);
  const double given = move_.forward(layer.computes, layer.output, out);
  sum.forward += read + given;
  sum.again += read + (layer.sums_alone() ? 0 : given);
  sum.backward += move_.backward(layer.input, layer.needs, in) +
                  move_.backward(layer.computes, layer.output, out);
}

// A norm gathers the rows of the stream where the layers behind it read all, a row layer sums into
// it; backward it is the other way round. A mixture takes the rows as they are.
UnitTimes::Moves UnitTimes::moves(std::int64_t block) const {
  Moves sum;
  if (tensor_ == 1) return sum;
  const model::BlockDivision division = division_of(block);
  const auto add_norm = [&](Boundary wanted) {
    const double gathered = move_.forward(Boundary::kStream, wanted, width());
    sum.forward += gathered;
    sum.again += gathered;
    sum.backward += move_.backward(Boundary::kStream, wanted, width());
  };
  add_norm(division.qkv.input);
  add_moves(division.qkv, width(), qkv(), sum);
  add_moves(division.out, queries(), width(), sum);
  if (experts_in(block)) return sum;
  add_norm(division.up.input);
  if (spec_.gated) add_moves(division.gate, width(), ffn(), sum);
  add_moves(division.up, width(), ffn(), sum);
  add_moves(division.down, ffn(), width(), sum);
  return sum;
}

/// Returns the time of a block's activations and, of a mixture, of its routing.
double UnitTimes::activations(const std::string& pass, std::int64_t block) const {
  const double inner = spec_.gated ? 2 : 1;
  if (!experts_in(block)) {
    const double width = ffn() / parts_at(division_of(block).up.output, tensor_);
    return kernel("activation" + pass, plan::pass_work(rows_ * width * inner));
  }
  const double shared = own_rows() * static_cast<double>(spec_.shared_ffn);
  const double routed = expert_rows() * static_cast<double>(spec_.ffn);
  return kernel("activation" + pass, plan::pass_work((routed + shared) * inner)) +
         kernel("routing" + pass,
                plan::routing_work(own_rows(), width(), static_cast<double>(spec_.experts),
                                   static_cast<double>(spec_.experts_per_token)));
}

double UnitTimes::attention(const std::string& pass, std::int64_t block) const {
  const MicroBatch part = batch_.at_heads(division_of(block).qkv.output);
  const auto samples = static_cast<double>(part.samples);
  const double heads = static_cast<double>(spec_.heads) / static_cast<double>(part.tensor_ranks);
  const auto size = static_cast<double>(spec_.head_size);
  const std::int64_t length = training_.length(spec_);
  const std::int64_t ranks = training_.degrees.cp;
  if (ranks == 1)
    return kernel("attention" + pass, plan::attention_work(samples, length, heads, size));
  if (training_.ulysses) {
    return kernel("head_attention" + pass,
                  plan::head_attention_work(samples, length, ranks, heads, size));
  }
  return kernel("ring_attention" + pass,
                plan::ring_attention_work(samples, length, ranks, heads, size));
}

// What has no kernel name of its own is a pass over memory and takes what a norm of as many
// elements takes.
double UnitTimes::between(const std::string& pass, std::int64_t block) const {
  const double heads = heads_taken(block);
  const double turned =
      spec_.positions == Positions::kRotary ? kernel("norm" + pass, plan::pass_work(heads)) : 0;
  const double normed = spec_.qk_norm ? kernel("norm" + pass, plan::pass_work(heads)) : 0;
  const double dropped = spec_.dropout > 0 ? 2 * stream_pass(pass) : 0;
  return 2 * stream_pass(pass) + normed + turned + dropped + activations(pass, block) +
         attention(pass, block);
}

/// Returns the time in which rows go to their experts and come back.
double UnitTimes::travel(const std::string& pass, std::int64_t block) const {
  if (training_.degrees.ep == 1 || !experts_in(block)) return 0;
  return kernel("dispatch" + pass, plan::memory_work(expert_rows() * width()));
}

/// Returns what a block runs again before its backward pass, in the place of the forward pass.
UnitTime UnitTimes::recomputed(std::int64_t block) const {
  const Keep keep = training_.kept.empty() ? kept_under(training_.recompute)
                                           : training_.kept[static_cast<std::size_t>(block)];
  UnitTime again;
  if (keep == Keep::kEverything) return again;
  // kProducts repeats everything but the matmuls, and the sums that follow them.
  const Moves moved = moves(block);
  again.exchanged = moved.again + travel("", block);
  again.recomputed = between("", block) + again.exchanged;
  if (keep == Keep::kInput) {
    const double sums = moved.forward - moved.again;
    again.exchanged += sums;
    again.recomputed += products("", block) + sums;
  }
  again.input_gradient = again.recomputed;
  return again;
}

double UnitTimes::passes_behind(const model::DividedLinear& layer) const {
  if (!layer.moves_output()) return 0;
  return layer.computes == Boundary::kPartial ? 2 : 1;
}

UnitTime UnitTimes::block(std::int64_t number) const {
  // Half of the products of a backward pass are for weights.
  const double weights = products("_backward", number) / 2;
  UnitTime time{.forward = products("", number) + between("", number),
                .input_gradient = weights + between("_backward", number),
                .weight_gradient = weights};
  const Moves moved = moves(number);
  const double there = travel("", number);
  const double back = travel("_backward", number);
  time.forward += moved.forward + there;
  time.input_gradient += moved.backward + back;
  time.exchanged = moved.forward + moved.backward + there + back;
  if (tensor_ > 1) {
    // Behind the sum a row layer adds bias and residual: two passes, and one for the bias's
    // gradient. A whole layer adds both in its product.
    const model::BlockDivision division = division_of(number);
    for (const model::DividedLinear* layer : {&division.out, &division.down}) {
      if (layer == &division.down && experts_in(number)) continue;
      const double passes = passes_behind(*layer);
      time.forward += passes * stream_pass("");
      if (spec_.bias && passes == 2) time.input_gradient += stream_pass("");
    }
  }
  time += recomputed(number);
  return time;
}

UnitTime UnitTimes::embedding() const {
  // Both passes are in the kernel.
  const bool cut = tensor_ > 1 && training_.tokens_cut();
  const double rows = cut || tensor_ == 1 ? rows_ : own_rows();
  UnitTime time{.forward = kernel("embedding", plan::pass_work(rows * width()))};
  if (!cut) return time;
  // With a part of the table the rows of other ranks' tokens are cleared in both, and the sum is
  // divided.
  const double cleared = kernel("norm", plan::pass_work(rows_ * width()));
  const double sum = move_.forward(Boundary::kPartial, Boundary::kStream, width());
  const double back = move_.backward(Boundary::kPartial, Boundary::kStream, width());
  time.forward += cleared + sum;
  time.input_gradient += cleared + back;
  time.exchanged = sum + back;
  return time;
}

UnitTime UnitTimes::head() const {
  const bool cut = tensor_ > 1 && training_.output_cut();
  const std::string name = (cut ? "loss_part" : "loss") + of_type_;
  const double classes = static_cast<double>(spec_.vocab) / (cut ? tensor_ : 1);
  const double loss = kernel(name, plan::loss_work(head_rows(), width(), classes));
  const double product = loss / kHeadProducts;
  const Boundary read = cut ? Boundary::kReplicate : Boundary::kStream;
  const double there = move_.forward(Boundary::kStream, read, width());
  const double back = move_.backward(Boundary::kStream, read, width());
  return {.forward = stream_pass("") + there + head_.forward * product,
          .input_gradient = stream_pass("_backward") + back + head_.input_gradient * product,
          .weight_gradient = head_.weight_gradient * product,
          .exchanged = there + back};
}

}  // namespace shoal::forecast
