#pragma once

#include <cstdint>
#include <string>

#include "shoal/forecast/move_times.h"
#include "shoal/forecast/plan_names.h"
#include "shoal/plan/logits_recomputation.h"

namespace shoal::forecast {

/// Returns the seconds of a kernel that the cluster has measured. Throws Error(config) when it has
/// not.
double kernel_seconds(const Cluster& cluster, const std::string& name,
                      const plan::KernelWork& work);

/// The seconds that one rank needs for one micro-batch in one unit of a model.
struct UnitTime {
  double forward = 0;
  double input_gradient = 0;   ///< backward but for what follows
  double weight_gradient = 0;  ///< the products that only weights want
  /// Part of `forward` and `input_gradient`: activations between ranks. The exchange of attention
  /// between context ranks is in the time of its kernel, and not here.
  double exchanged = 0;
  double recomputed = 0;  ///< part of `input_gradient`: what the block had not kept

  double all() const { return forward + input_gradient + weight_gradient; }
  UnitTime& operator+=(const UnitTime& other);
};

/// The times of a transformer's units, as the sum of the kernels that their operators run. A rank
/// exchanges activations on the thread that computes, so that all of it adds up.
class UnitTimes {
 public:
  UnitTimes(const ModelSpec& spec, const Training& training, const Cluster& cluster);

  UnitTime embedding() const;
  UnitTime block(std::int64_t number) const;
  /// The final norm, and the loss with its matmuls.
  UnitTime head() const;
  /// The output of a unit, or its gradient, on its way to another stage: what the receiver needs
  /// to copy it.
  double message() const;

 private:
  /// Names of kernels end in "" or "_backward".
  double kernel(const std::string& name, const plan::KernelWork& work) const {
    return kernel_seconds(cluster_, name, work);
  }
  model::BlockDivision division_of(std::int64_t block) const { return batch_.division_of(block); }
  double linear(const std::string& name, const model::DividedLinear& layer, double in,
                double out) const;
  double feed_forward(const std::string& name, double rows, double features) const;
  double products(const std::string& pass, std::int64_t block) const;
  /// Seconds of a block's moves between tensor-parallel ranks.
  struct Moves {
    double forward = 0;
    double backward = 0;
    double again = 0;  ///< part of `forward`: also where the results of products are kept
  };
  Moves moves(std::int64_t block) const;
  void add_moves(const model::DividedLinear& layer, double in, double out, Moves& sum) const;
  /// Returns the passes over the stream behind a layer that ends in it.
  double passes_behind(const model::DividedLinear& layer) const;
  double mixture_products(const std::string& pass) const;
  double activations(const std::string& pass, std::int64_t block) const;
  double attention(const std::string& pass, std::int64_t block) const;
  double between(const std::string& pass, std::int64_t block) const;
  double travel(const std::string& pass, std::int64_t block) const;
  UnitTime recomputed(std::int64_t block) const;

  double width() const { return static_cast<double>(spec_.hidden); }
  /// Rows of the residual stream: norms and dropout run on them.
  double own_rows() const { return rows_ / tensor_; }
  double stream_pass(const std::string& pass) const {
    return kernel("norm" + pass, plan::pass_work(own_rows() * width()));
  }
  double ffn() const { return static_cast<double>(model::dense_width(spec_)); }
  /// Returns the elements of the queries, keys and values that attention takes on this rank.
  double heads_taken(std::int64_t block) const;
  /// Rows that the experts of this rank compute: those of the busiest rank.
  double expert_rows() const;
  double queries() const { return static_cast<double>(spec_.heads * spec_.head_size); }
  /// Return the features of queries, keys and values: all, and those of a rank's own heads.
  double qkv() const;
  double own_qkv() const;
  double head_rows() const { return training_.output_cut() ? rows_ : own_rows(); }
  bool experts_in(std::int64_t block) const { return model::has_experts(spec_, block); }

  const ModelSpec& spec_;
  const Training& training_;
  const Cluster& cluster_;
  MicroBatch batch_;     ///< on the context rank that has most
  double rows_;          ///< of it
  double tensor_;        ///< ranks that divide heads, features, vocabulary and the stream
  std::string of_type_;  ///< suffix of kernels that differ by the type of the weights
  MoveTimes move_;
  plan::HeadProducts head_;
};

}  // namespace shoal::forecast
