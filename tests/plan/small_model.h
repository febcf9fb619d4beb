#pragma once

#include "shoal/model/model_spec.h"
#include "tests/plan/published.h"

namespace shoal::plan {

/// A GPT-like model, small enough to count by hand.
inline ModelSpec small() {
  ModelSpec spec;
  spec.layers = 4;
  spec.hidden = 64;
  spec.heads = spec.kv_heads = 4;
  spec.head_size = 16;
  spec.ffn = 256;
  spec.vocab = 512;
  spec.sequence = 128;
  return spec;
}

/// 24 samples in micro-batches of two, on so many ranks of each axis.
inline Training on(std::int64_t data, std::int64_t tensor = 1, std::int64_t pipeline = 1) {
  Training training;
  training.degrees.dp_shard = data;
  training.degrees.tp = tensor;
  training.degrees.pp = pipeline;
  training.micro_batch = 2;
  training.global_batch = 24;
  return training;
}

/// A100s with a price, a power, failures and slow storage.
inline Cluster cluster_of(std::int64_t devices) {
  Cluster cluster = with_devices(*cluster_preset("a100"), devices);
  cluster.device.price_per_hour = 2;
  cluster.device.power_w = 500;
  cluster.device.hours_between_failures = 800;
  cluster.storage = {.read_bandwidth = 1e6, .write_bandwidth = 5e5};
  return cluster;
}

inline double count_of(const ModelSpec& spec) {
  return static_cast<double>(model::parameter_count(spec));
}

}  // namespace shoal::plan
