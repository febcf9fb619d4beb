#include "bench/train/given_inputs.h"

#include <ATen/ops/empty.h>
#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <fstream>

#include "shoal/base/check.h"

namespace shoal::bench {
namespace {

template <class T>
std::vector<T> read_all(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) throw Error(ErrorKind::kInputMissing, "bench", fmt::format("cannot read {}", path));
  std::vector<T> values(std::filesystem::file_size(path) / sizeof(T));
  file.read(reinterpret_cast<char*>(values.data()),
            static_cast<std::streamsize>(values.size() * sizeof(T)));
  if (!file)
    throw Error(ErrorKind::kInputMissing, "bench", fmt::format("cannot read all of {}", path));
  return values;
}

/// The order of named_parameters() in torch_gpt2.py, in our names.
std::vector<std::string> names_in_peer_order(const model::ModelSpec& spec) {
  std::vector<std::string> names{"embedding.tokens.weight", "embedding.positions.weight"};
  for (std::int64_t i = 0; i < spec.layers; ++i) {
    for (const char* name :
         {"norm_1", "norm_2", "attention.qkv", "attention.out", "mlp.up", "mlp.down"}) {
      for (const char* part : {"weight", "bias"})
        names.push_back(fmt::format("blocks.{}.{}.{}", i, name, part));
    }
  }
  names.insert(names.end(), {"head.norm.weight", "head.norm.bias"});
  return names;
}

/// [3, heads, size] to [heads, 3, size], each of the size rows holding `columns` values.
void regroup_by_head(const float* from, float* to, std::int64_t heads, std::int64_t size,
                     std::int64_t columns) {
  const std::int64_t rows = size * columns;
  for (std::int64_t head = 0; head < heads; ++head) {
    for (std::int64_t part = 0; part < 3; ++part)
      std::copy_n(from + (part * heads + head) * rows, rows, to + (head * 3 + part) * rows);
  }
}

/// Copies this rank's part of a whole parameter.
void fill(const nn::Parameter& parameter, const at::Tensor& whole) {
  at::Tensor part = whole;
  const mesh::Box& box = parameter.box();
  for (std::size_t d = 0; d < box.begin.size(); ++d)
    part = part.narrow(static_cast<std::int64_t>(d), box.begin[d], box.end[d] - box.begin[d]);
  parameter.tensor().detach().copy_(part);
}

}  // namespace

void load_weights(nn::Model& model, const std::string& path) {
  const model::ModelSpec& spec = model.spec();
  const std::vector<float> flat = read_all<float>(path);
  model::ModelSpec in_file = spec;  // whose head has no matrix of its own
  in_file.tied_embeddings = true;
  if (static_cast<std::int64_t>(flat.size()) != model::parameter_count(in_file)) {
    throw Error(ErrorKind::kData, "bench",
                fmt::format("{} holds {} numbers, the model {}", path, flat.size(),
                            model::parameter_count(in_file)));
  }
  // On the meta device: this rank may have parts of the parameters, and not all of them.
  const auto all = nn::make_model(in_file);
  const float* from = flat.data();
  for (const std::string& name : names_in_peer_order(spec)) {
    const auto parameter = model.find_parameter(name);
    const at::Tensor whole = at::empty(all->find_parameter(name)->global_shape(), at::kFloat);
    auto* to = whole.mutable_data_ptr<float>();
    if (name.find(".qkv.") != std::string::npos) {
      regroup_by_head(from, to, spec.heads, spec.head_size, whole.dim() == 2 ? spec.hidden : 1);
    } else {
      std::copy_n(from, whole.numel(), to);
    }
    from += whole.numel();
    if (parameter) fill(*parameter, whole);
    const auto head = model.find_parameter("head.output.weight");
    if (name == "embedding.tokens.weight" && head && head != parameter) fill(*head, whole);
  }
}

GivenTokens::GivenTokens(const std::string& path, int world, std::int64_t batch,
                         std::int64_t columns)
    : tokens_(read_all<std::int32_t>(path)), world_(world), batch_(batch), columns_(columns) {}

train::Batch GivenTokens::batch(std::int64_t step, int rank) const {
  const std::int64_t size = batch_ * (columns_ + 1);
  const std::int64_t begin = (step * world_ + rank) * size;
  SHOAL_USER_CHECK(begin + size <= static_cast<std::int64_t>(tokens_.size()), "bench",
                   "the token file ends before step {}", step);
  const at::Tensor inputs = at::empty({batch_, columns_}, at::kLong);
  const at::Tensor labels = at::empty({batch_, columns_}, at::kLong);
  for (std::int64_t row = 0; row < batch_; ++row) {
    const std::int32_t* tokens = tokens_.data() + begin + row * (columns_ + 1);
    std::copy_n(tokens, columns_, inputs.mutable_data_ptr<std::int64_t>() + row * columns_);
    std::copy_n(tokens + 1, columns_, labels.mutable_data_ptr<std::int64_t>() + row * columns_);
  }
  return {.inputs = inputs, .labels = labels};
}

}  // namespace shoal::bench
