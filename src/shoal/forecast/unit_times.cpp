#include "shoal/forecast/unit_times.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "shoal/base/error.h"
#include "shoal/forecast/memory.h"

namespace shoal::forecast {
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
      rows_(static_cast<double>(training.micro_batch * training.length(spec)) /
            static_cast<double>(training.degrees.cp)),
      tensor_(static_cast<double>(training.degrees.tp)),
      of_type_(training.precision == "bf16" ? "_bf16" : ""),
      head_(plan::head_products(static_cast<std::int64_t>(std::ceil(rows_)),
                                plan::recomputes_logits(spec, training))) {}

double UnitTimes::expert_rows() const {
  const double busiest = training_.degrees.ep > 1 ? training_.expert_imbalance : 1;
  return own_rows() * static_cast<double>(spec_.experts_per_token) * busiest;
}

double UnitTimes::qkv() const {
  const double pairs = std::max(static_cast<double>(spec_.kv_heads) / tensor_, 1.0);
  return (heads() + 2 * pairs) * static_cast<double>(spec_.head_size);
}

// Ranks divide whole samples where those are enough, or the columns of a single one: the parts then
// lie one behind the other. Otherwise a pass over all rows puts them together or takes them apart.
double UnitTimes::stream_exchange(const char* name) const {
  if (tensor_ == 1) return 0;
  const double elements = rows_ * width();
  const bool in_order =
      training_.micro_batch == 1 || training_.micro_batch % training_.degrees.tp == 0;
  return kernel(name, plan::memory_work(elements)) +
         (in_order ? 0 : kernel("norm", plan::pass_work(elements)));
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

// The linear layers of a block: queries, keys and values; output; the feed-forward layer or the
// mixture.
double UnitTimes::products(const std::string& pass, std::int64_t block) const {
  const std::string name = "linear" + pass + of_type_;
  return kernel(name, plan::linear_work(rows_, width(), qkv())) +
         kernel(name, plan::linear_work(rows_, queries(), width())) +
         (experts_in(block) ? mixture_products(pass) : feed_forward(name, rows_, ffn()));
}

/// Returns the time of a block's activations and, of a mixture, of its routing.
double UnitTimes::activations(const std::string& pass, std::int64_t block) const {
  const double inner = spec_.gated ? 2 : 1;
  if (!experts_in(block))
    return kernel("activation" + pass, plan::pass_work(rows_ * ffn() * inner));
  const double shared = own_rows() * static_cast<double>(spec_.shared_ffn);
  const double routed = expert_rows() * static_cast<double>(spec_.ffn);
  return kernel("activation" + pass, plan::pass_work((routed + shared) * inner)) +
         kernel("routing" + pass,
                plan::routing_work(own_rows(), width(), static_cast<double>(spec_.experts),
                                   static_cast<double>(spec_.experts_per_token)));
}

double UnitTimes::attention(const std::string& pass) const {
  const auto samples = static_cast<double>(training_.micro_batch);
  const auto size = static_cast<double>(spec_.head_size);
  const std::int64_t length = training_.length(spec_);
  const std::int64_t ranks = training_.degrees.cp;
  if (ranks == 1)
    return kernel("attention" + pass, plan::attention_work(samples, length, heads(), size));
  if (training_.ulysses) {
    return kernel("head_attention" + pass,
                  plan::head_attention_work(samples, length, ranks, heads(), size));
  }
  return kernel("ring_attention" + pass,
                plan::ring_attention_work(samples, length, ranks, heads(), size));
}

// What has no kernel name of its own is a pass over memory and takes what a norm of as many
// elements takes.
double UnitTimes::between(const std::string& pass, std::int64_t block) const {
  const double turned = spec_.positions == Positions::kRotary
                            ? kernel("norm" + pass, plan::pass_work(rows_ * qkv()))
                            : 0;
  const double normed = spec_.qk_norm ? kernel("norm" + pass, plan::pass_work(rows_ * qkv())) : 0;
  const double dropped = spec_.dropout > 0 ? 2 * stream_pass(pass) : 0;
  return 2 * stream_pass(pass) + normed + turned + dropped + activations(pass, block) +
         attention(pass);
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
  again.exchanged = (experts_in(block) ? 1 : 2) * stream_exchange("gather") + travel("", block);
  again.recomputed = between("", block) + again.exchanged;
  if (keep == Keep::kInput) {
    const double sums = (experts_in(block) ? 1 : 2) * stream_exchange("scatter");
    again.exchanged += sums;
    again.recomputed += products("", block) + sums;
  }
  again.input_gradient = again.recomputed;
  return again;
}

UnitTime UnitTimes::block(std::int64_t number) const {
  // Half of the products of a backward pass are for weights.
  const double weights = products("_backward", number) / 2;
  UnitTime time{.forward = products("", number) + between("", number),
                .input_gradient = weights + between("_backward", number),
                .weight_gradient = weights};
  // A norm gathers the rows of the stream, a row layer sums into it; backward it is the other way
  // round. A mixture takes the rows as they are.
  const double pairs = experts_in(number) ? 1 : 2;
  const double stream = pairs * (stream_exchange("gather") + stream_exchange("scatter"));
  const double there = travel("", number);
  const double back = travel("_backward", number);
  time.forward += stream + there;
  time.input_gradient += stream + back;
  time.exchanged = 2 * stream + there + back;
  if (tensor_ > 1) {
    // Behind the sum a row layer adds bias and residual: two passes, and one for the bias's
    // gradient.
    time.forward += pairs * 2 * stream_pass("");
    if (spec_.bias) time.input_gradient += pairs * stream_pass("");
  }
  time += recomputed(number);
  return time;
}

UnitTime UnitTimes::embedding() const {
  // Both passes are in the kernel. With a part of the table the rows of other ranks' tokens are
  // cleared in both, and the sum is divided.
  UnitTime time{.forward = kernel("embedding", plan::pass_work(rows_ * width()))};
  if (tensor_ == 1) return time;
  const double cleared = kernel("norm", plan::pass_work(rows_ * width()));
  const double sum = stream_exchange("scatter");
  const double back = stream_exchange("gather");
  time.forward += cleared + sum;
  time.input_gradient += cleared + back;
  time.exchanged = sum + back;
  return time;
}

UnitTime UnitTimes::head() const {
  const std::string name = (tensor_ > 1 ? "loss_part" : "loss") + of_type_;
  const double loss =
      kernel(name, plan::loss_work(rows_, width(), static_cast<double>(spec_.vocab) / tensor_));
  const double product = loss / kHeadProducts;
  const double there = stream_exchange("gather");
  const double back = stream_exchange("scatter");
  return {.forward = stream_pass("") + there + head_.forward * product,
          .input_gradient = stream_pass("_backward") + back + head_.input_gradient * product,
          .weight_gradient = head_.weight_gradient * product,
          .exchanged = there + back};
}

}  // namespace shoal::forecast
