#pragma once

#include <cstdlib>
#include <fstream>
#include <map>
#include <sstream>
#include <stdexcept>
#include <string>
#include <vector>

#include "shoal/plan/memory.h"
#include "shoal/plan/step_time.h"
#include "shoal/plan/traffic.h"

namespace shoal::plan {

/// One line of a table in tests/plan/data, read by column name.
class Row {
 public:
  Row(const std::vector<std::string>& names, const std::string& line) {
    std::stringstream cells(line);
    std::string cell;
    for (const std::string& name : names) {
      if (!std::getline(cells, cell, ',')) throw std::runtime_error("a short line: " + line);
      cells_[name] = cell;
    }
  }
  const std::string& text(const std::string& name) const { return cells_.at(name); }
  double operator[](const std::string& name) const { return std::stod(cells_.at(name)); }
  std::int64_t whole(const std::string& name) const { return std::stoll(cells_.at(name)); }

 private:
  std::map<std::string, std::string> cells_;
};

inline std::vector<Row> published(const std::string& table) {
  std::ifstream file(std::string(SHOAL_PLAN_DATA) + "/" + table + ".csv");
  if (!file) throw std::runtime_error("no table " + table);
  std::vector<std::string> names;
  std::vector<Row> rows;
  for (std::string line; std::getline(file, line);) {
    if (line.empty() || line[0] == '#') continue;
    if (names.empty()) {
      std::stringstream cells(line);
      for (std::string cell; std::getline(cells, cell, ',');) names.push_back(cell);
    } else {
      rows.emplace_back(names, line);
    }
  }
  if (rows.empty()) throw std::runtime_error("no rows in " + table);
  return rows;
}

/// The GPT of Megatron's papers: ffn = 4 h, biases, learned positions, dropout.
inline ModelSpec megatron_gpt(std::int64_t layers, std::int64_t hidden, std::int64_t heads,
                              std::int64_t vocab, std::int64_t sequence) {
  ModelSpec spec;
  spec.layers = layers;
  spec.hidden = hidden;
  spec.heads = heads;
  spec.vocab = vocab;
  spec.sequence = sequence;
  spec.dropout = 0.1;
  return complete(spec);
}
inline ModelSpec megatron_gpt(const Row& row, std::int64_t vocab, std::int64_t sequence) {
  return megatron_gpt(row.whole("layers"), row.whole("hidden"), row.whole("heads"), vocab,
                      sequence);
}

/// 16-bit training as Megatron did it before 2023: no fused attention, fp16 parameters.
inline Training megatron_training(std::int64_t tp, std::int64_t pp, std::int64_t vpp,
                                  std::int64_t dp, std::int64_t batch, std::int64_t micro_batch) {
  Training training;
  training.degrees.tp = tp;
  training.degrees.pp = pp;
  training.virtual_stages = vpp;
  training.degrees.dp_shard = dp;
  training.global_batch = batch;
  training.micro_batch = micro_batch;
  training.schedule = vpp > 1 ? "interleaved" : "1f1b";
  training.flash_attention = false;
  training.overlap_data = false;
  training.sequence_parallel = false;
  training.precision = "bf16";
  return training;
}

// What a single question asks of plan/: without a cache of simulated schedules, about one rank or
// one technique.

inline std::vector<RankMemory> published_memory(const ModelSpec& spec, const Training& training) {
  ScheduleCache cache;
  return published_memory(spec, training, cache);
}
inline std::vector<RankMemory> published_memory(const ModelSpec& spec, const Training& training,
                                                const Cluster& cluster) {
  ScheduleCache cache;
  return published_memory(spec, training, cluster, cache);
}
inline StepTime published_step_time(const ModelSpec& spec, const Training& training,
                                    const Cluster& cluster) {
  ScheduleCache cache;
  return published_step_time(spec, training, cluster, cache);
}
inline HeldParameters held_parameters(const ModelSpec& spec, const Training& training,
                                      std::int64_t rank) {
  return held_by_rank(spec, training).at(rank);
}
inline double in_flight(const ModelSpec& spec, const Training& training, std::int64_t rank) {
  ScheduleCache cache;
  return in_flight_by_rank(spec, training, cache).at(rank);
}
inline double traffic_bytes(const std::vector<Traffic>& all, const std::string& technique) {
  for (const Traffic& one : all)
    if (one.technique == technique) return one.bytes;
  return 0;
}
inline double between_bytes(const std::vector<Traffic>& all, const std::string& technique) {
  for (const Traffic& one : all)
    if (one.technique == technique) return one.between_bytes;
  return 0;
}

}  // namespace shoal::plan
