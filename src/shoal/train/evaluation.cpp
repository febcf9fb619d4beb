#include "shoal/train/evaluation.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/full_like.h>
#include <ATen/ops/zeros.h>
#include <fmt/format.h>

#include <algorithm>
#include <numbers>

#include "shoal/train/step.h"

namespace shoal::train {
namespace {

/// Sums over the ranks, in the order of the tensor that they reduce.
struct Sums {
  double loss = 0, labels = 0, bytes = 0, correct = 0, squares = 0, absolutes = 0;
};
constexpr int kSums = sizeof(Sums) / sizeof(double);

void add(Sums& sums, nn::Model& model, const Batch& batch, const parallel::BatchShare& share,
         Task task) {
  nn::Context context;
  context.training = false;
  context.labels = batch.labels;
  context.documents = batch.documents;
  const at::Tensor inputs = share.cut(batch.inputs, context);
  sums.loss += model(inputs, context).item<double>();
  sums.labels += count_labels({batch}, share);
  if (share.counts_samples()) sums.bytes += static_cast<double>(batch.bytes);
  if (task == Task::kTokens) return;
  // The loss came without outputs; a second pass without labels gives them. Tables are small.
  context.labels = at::Tensor();
  const at::Tensor outputs = model(inputs, context).cpu();  // [B, outputs]
  if (task == Task::kClasses) {
    sums.correct += outputs.argmax(-1).eq(batch.labels).sum().item<double>();
  } else {
    const at::Tensor error = outputs.to(at::kDouble).sub(batch.labels);
    sums.squares += error.square().sum().item<double>();
    sums.absolutes += error.abs().sum().item<double>();
  }
}

/// Runs batches of token data through a pipeline, at most as many as its table has micro-batches.
void add_round(Sums& sums, parallel::Pipeline& pipeline, const std::vector<Batch>& batches,
               const parallel::BatchShare& share) {
  std::vector<parallel::MicroBatch> micro_batches;
  for (std::size_t k = 0; k < static_cast<std::size_t>(pipeline.table().micro_batches); ++k) {
    // The last round is filled up with a batch of which no label counts.
    const Batch& batch = batches[std::min(k, batches.size() - 1)];
    parallel::MicroBatch micro_batch;
    micro_batch.context.training = false;
    micro_batch.context.documents = batch.documents;
    micro_batch.context.labels =
        k < batches.size() ? batch.labels : at::full_like(batch.labels, kIgnoredLabel);
    micro_batch.input = share.cut(batch.inputs, micro_batch.context);
    micro_batches.push_back(std::move(micro_batch));
  }
  sums.loss += pipeline.evaluate(micro_batches);
  sums.labels += count_labels(batches, share);
  for (const Batch& batch : batches)
    if (share.counts_samples()) sums.bytes += static_cast<double>(batch.bytes);
}

/// Returns a sample of which no label counts.
Batch uncounted(const DataSource& data, const std::string& split) {
  Batch batch = data.evaluation(split, {0});
  batch.labels = at::full_like(batch.labels, kIgnoredLabel);
  batch.bytes = 0;
  return batch;
}

}  // namespace

Evaluation evaluate(nn::Model& model, const DataSource& data, const comm::Group& group,
                    const parallel::BatchShare& share, const EvaluationOptions& options,
                    parallel::Pipeline* pipeline) {
  const at::NoGradGuard no_grad;
  const std::int64_t all = data.evaluation_samples(options.split);
  const std::int64_t count = options.samples > 0 ? std::min(options.samples, all) : all;
  // Ranks that run the same samples run as many micro-batches: their collectives meet.
  const std::int64_t begin = count * share.rank() / share.ranks();
  const std::int64_t end = count * (share.rank() + 1) / share.ranks();
  // Where experts are divided or parameters gathered, ranks with different samples run as many
  // micro-batches too: those that have fewer fill up.
  const std::int64_t rounds = options.in_step || share.in_step()
                                  ? (count + share.ranks() - 1) / share.ranks()
                                  : end - begin;
  Sums sums;
  Sums not_counted;
  std::vector<Batch> batches;  // of a round of the pipeline
  for (std::int64_t i = begin; i < begin + rounds; i += options.micro_batch) {
    std::vector<std::int64_t> samples;
    // `count` samples spread evenly over the split, the same ones for any number of ranks.
    for (std::int64_t k = i; k < std::min(i + options.micro_batch, end); ++k)
      samples.push_back(k * all / count);
    const Batch batch =
        samples.empty() ? uncounted(data, options.split) : data.evaluation(options.split, samples);
    if (!pipeline) {
      add(samples.empty() ? not_counted : sums, model, batch, share, data.task());
      continue;
    }
    batches.push_back(batch);
    const bool last = i + options.micro_batch >= begin + rounds;
    if (!last && batches.size() < static_cast<std::size_t>(pipeline->table().micro_batches))
      continue;
    add_round(sums, *pipeline, batches, share);
    batches.clear();
  }
  // One all-reduce for all sums. Ranks without samples of their own come here too: it is
  // collective.
  const at::Tensor total = at::zeros({kSums}, at::kDouble);
  auto* values = reinterpret_cast<Sums*>(total.data_ptr<double>());
  *values = sums;
  group.all_reduce(total);
  sums = *values;

  Evaluation evaluation{.loss = sums.loss / sums.labels,
                        .labels = static_cast<std::int64_t>(sums.labels)};
  // The loss counts nats; ln 2 nats are a bit.
  if (data.task() == Task::kTokens && sums.bytes > 0)
    evaluation.bits_per_byte = sums.loss / std::numbers::ln2 / sums.bytes;
  if (data.task() == Task::kClasses) evaluation.accuracy = sums.correct / sums.labels;
  if (data.task() == Task::kRegression) evaluation.mean_squared_error = sums.squares / sums.labels;
  if (data.task() == Task::kRegression)
    evaluation.mean_absolute_error = sums.absolutes / sums.labels;
  return evaluation;
}

std::string describe(const Evaluation& e) {
  std::string text = fmt::format("loss {:.4f}", e.loss);
  if (e.bits_per_byte) text += fmt::format(", {:.4f} bits per byte", *e.bits_per_byte);
  if (e.accuracy) text += fmt::format(", accuracy {:.2f} %", 100 * *e.accuracy);
  if (e.mean_squared_error) text += fmt::format(", MSE {:.5g}", *e.mean_squared_error);
  if (e.mean_absolute_error) text += fmt::format(", MAE {:.5g}", *e.mean_absolute_error);
  return text;
}

}  // namespace shoal::train
