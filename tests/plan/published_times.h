#pragma once

#include "shoal/plan/efficiency_fit.h"
#include "shoal/plan/search.h"
#include "tests/plan/published.h"

namespace shoal::plan {

/// The A100 rows as predictions of an efficiency. Full recomputation without sequence parallelism, or selective with it.
inline TimedRow korthikanti_row(const Row& row, bool full) {
  const ModelSpec spec = megatron_gpt(row, 51200, 2048);
  Training training = megatron_training(8, row.whole("pp"), row.whole("vpp"), 1, row.whole("batch"), row.whole("micro_batch"));
  training.precision = "bf16";
  training.recompute = full ? Recompute::kFull : Recompute::kSelective;
  training.sequence_parallel = !full;
  const Cluster cluster = with_devices(*cluster_preset("a100"), training.mesh.devices());
  return {row.text("model") + (full ? " full" : " selective"), row[full ? "full_s" : "selective_s"], [=](const Efficiency& efficiency) {
            Cluster fitted = cluster;
            fitted.device.efficiency = efficiency;
            return step_time(spec, training, fitted).all();
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
    training.recompute = recompute == "full" ? Recompute::kFull : recompute == "selective" ? Recompute::kSelective : Recompute::kNone;
    const Cluster cluster = with_devices(*cluster_preset("a100"), 8);
    for (const bool forward : {true, false})
      rows.push_back({"layer, " + recompute + (training.sequence_parallel ? " + sequence" : "") + (forward ? ", forward" : ", backward"),
                      row[forward ? "forward_ms" : "backward_ms"] / 1e3, [=](const Efficiency& efficiency) {
                        Cluster fitted = cluster;
                        fitted.device.efficiency = efficiency;
                        const PieceTime time = block_time(spec, training, fitted);
                        return forward ? time.forward : time.input_gradient + time.weight_gradient;
                      }});
  }
  return rows;
}

/// A row whose micro-batch and virtual stages are not published: those that the planner's own search finds best.
struct SearchedRow {
  std::string name;
  double seconds = 0;
  ModelSpec spec;
  Training start;
  Cluster cluster;

  Candidate best(const Efficiency& efficiency) const {
    SearchSpace space;
    space.tensor = {start.mesh.tensor}, space.pipeline = {start.mesh.pipeline}, space.context = {1}, space.zero = {start.zero};
    space.recompute = {start.recompute};
    Cluster fitted = cluster;
    fitted.device.efficiency = efficiency;
    return search(spec, start, fitted, space, 1).best.at(0);
  }
  TimedRow timed() const {
    return {name, seconds, [*this](const Efficiency& efficiency) { return best(efficiency).time.all(); }};
  }
};

inline SearchedRow sc21_row(const Row& row) {
  const ModelSpec spec = megatron_gpt(row, 51200, 2048);
  const std::int64_t gpus = row.whole("gpus"), tp = row.whole("tp"), pp = row.whole("pp");
  Training start = megatron_training(tp, pp, 1, gpus / tp / pp, row.whole("batch"), 1);
  start.precision = "bf16", start.recompute = Recompute::kFull;
  return {"SC21 " + row.text("parameters_b") + "B", row["seconds"], spec, start, with_devices(*cluster_preset("a100"), gpus)};
}

/// The README says that data, tensor and pipeline exchange overlap; only the first is credited here, because the rows are met better so: what
/// overlaps slows the products down.
inline SearchedRow h100_row(const Row& row) {
  ModelSpec spec = megatron_gpt(row, 131072, 4096);
  spec.tied_embeddings = false, spec.dropout = 0;
  const std::int64_t gpus = row.whole("gpus"), tp = row.whole("tp"), pp = row.whole("pp");
  Training start;
  start.mesh.tensor = tp, start.mesh.pipeline = pp, start.mesh.data = gpus / tp / pp, start.global_batch = row.whole("batch");
  start.precision = "bf16", start.zero = 1, start.overlap_data = true;
  return {"H100 " + row.text("model"), row["seconds"], spec, start, with_devices(*cluster_preset("h100"), gpus)};
}

}  // namespace shoal::plan
