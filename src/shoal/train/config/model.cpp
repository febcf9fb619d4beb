#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <vector>

#include "shoal/base/nearest.h"
#include "shoal/train/config/keys.h"
#include "shoal/train/config/model_source.h"
#include "shoal/train/config/validate.h"

namespace shoal::train {
namespace {

using model::Family;
using model::ModelSpec;

constexpr std::int64_t kVocabMultiple = 64;

/// The model whose weights a run starts from. Nothing of its shape may change: the weights would
/// not fit, or would not mean the same.
ModelSpec source_model(const Job& job) {
  if (!job.config.model.name.empty())
    throw config_error(job, "model.name", "follows from model.from; leave one of them out");
  constexpr const char* kOfTraining[] = {"dropout", "balance_loss", "capacity_factor",
                                         "router_bias_rate"};
  for (const ConfigKey& key : all_keys()) {
    const bool free = key.name == "from" || key.name == "name" ||
                      std::find(std::begin(kOfTraining), std::end(kOfTraining), key.name) !=
                          std::end(kOfTraining);
    if (key.section == "model" && !free && job.origins.contains(key.path()))
      throw config_error(job, key.path(), "follows from model.from; leave it out");
  }
  try {
    return spec_of(find_model(job.config.model.from));
  } catch (const Error& error) {
    throw Error(error.kind(), "job",
                fmt::format("{}: model.from: {}", job.origin("model.from"), error.message()));
  }
}

ModelSpec starting_point(const Job& job) {
  const ModelSection& model = job.config.model;
  if (!model.from.empty()) return source_model(job);
  // Either a named size or a whole shape, so that it is always clear where a size comes from.
  if (model.name.empty()) {
    if (!model.family) {
      throw config_error(job, "model.name",
                         "name a size, set model.family and the shape, or name a model to start "
                         "from with model.from");
    }
    ModelSpec spec;
    spec.family = *model.family;
    if (spec.family == Family::kMlp) spec.activation = model::Activation::kRelu;
    return spec;
  }
  if (model.family) {
    throw config_error(job, "model.family",
                       "follows from model.name; leave it out, or leave the name out");
  }
  if (const auto named = model::named_model(model.name)) return *named;
  const std::string near = nearest(model.name, model::model_names());
  Error error = config_error(
      job, "model.name",
      fmt::format("no such model; must be {}", describe_allowed(*find_key("model", "name"))));
  throw near.empty() ? error : error.hint(fmt::format("did you mean \"{}\"?", near));
}

void reject_other_family(const Job& job, const ModelSpec& spec) {
  const bool mlp = spec.family == Family::kMlp;
  const auto reject = [&](std::initializer_list<const char*> names, const char* why) {
    for (const char* name : names) {
      if (job.origins.contains(std::string("model.") + name))
        throw config_error(job, std::string("model.") + name, why);
    }
  };
  if (mlp) {
    reject({"layers",
            "hidden",
            "heads",
            "kv_heads",
            "head_size",
            "ffn",
            "vocab",
            "sequence",
            "tied_embeddings",
            "qkv_bias",
            "qk_norm",
            "gated",
            "positions",
            "rope_theta",
            "norm",
            "norm_epsilon",
            "dropout",
            "init_std",
            "experts",
            "experts_per_token",
            "shared_ffn",
            "dense_layers",
            "dense_ffn",
            "router_score",
            "normalize_gates",
            "router_bias",
            "gate_scale",
            "router_bias_rate",
            "balance_loss",
            "capacity_factor"},
           "belongs to a transformer, and this model is a multi-layer perceptron");
    if (job.config.data.source == DataKind::kTokens) {
      throw config_error(job, "data.source",
                         "a multi-layer perceptron learns from tables: digits, csv or regression");
    }
  } else {
    reject({"inputs", "outputs", "widths"},
           "belongs to a multi-layer perceptron, and this model is a transformer");
    if (job.config.data.source != DataKind::kTokens)
      throw config_error(job, "data.source", "a transformer learns from tokens");
  }
}

template <class T>
void take(T& value, const std::optional<T>& changed) {
  if (changed) value = *changed;
}

/// Sizes that hang together: a new width takes the feed-forward width along, new heads divide the
/// width anew.
void take_sizes(const Job& job, ModelSpec& spec) {
  const ModelSection& model = job.config.model;
  const ModelSpec before = spec;
  take(spec.layers, model.layers);
  take(spec.hidden, model.hidden);
  take(spec.heads, model.heads);
  // 0 asks model::complete to derive the value anew.
  if (model.heads && before.kv_heads == before.heads) spec.kv_heads = 0;
  take(spec.kv_heads, model.kv_heads);
  // Where heads do not share the width out among them, their size is a choice of its own.
  if ((model.hidden || model.heads) && before.heads * before.head_size == before.hidden)
    spec.head_size = 0;
  take(spec.head_size, model.head_size);
  if (model.hidden && before.hidden > 0) {
    if (!model.ffn && spec.hidden * before.ffn % before.hidden != 0) {
      throw config_error(job, "model.ffn",
                         fmt::format("{} has {} for hidden = {}; say what it is for hidden = {}",
                                     model.name, before.ffn, before.hidden, spec.hidden));
    }
    // The proportion of the named size is kept.
    spec.ffn = spec.hidden * before.ffn / before.hidden;
  }
  take(spec.ffn, model.ffn);
}

void take_rest(const ModelSection& model, ModelSpec& spec) {
  take(spec.vocab, model.vocab);
  take(spec.sequence, model.sequence);
  take(spec.tied_embeddings, model.tied_embeddings);
  take(spec.bias, model.bias);
  take(spec.qkv_bias, model.qkv_bias);
  take(spec.qk_norm, model.qk_norm);
  take(spec.gated, model.gated);
  take(spec.positions, model.positions);
  take(spec.rope_theta, model.rope_theta);
  take(spec.norm, model.norm);
  take(spec.norm_epsilon, model.norm_epsilon);
  take(spec.dropout, model.dropout);
  take(spec.init_std, model.init_std);
  take(spec.activation, model.activation);
  take(spec.experts, model.experts);
  take(spec.experts_per_token, model.experts_per_token);
  take(spec.shared_ffn, model.shared_ffn);
  take(spec.dense_layers, model.dense_layers);
  take(spec.dense_ffn, model.dense_ffn);
  take(spec.router_score, model.router_score);
  take(spec.normalize_gates, model.normalize_gates);
  take(spec.router_bias, model.router_bias);
  take(spec.gate_scale, model.gate_scale);
  take(spec.router_bias_rate, model.router_bias_rate);
  take(spec.balance_loss, model.balance_loss);
  take(spec.capacity_factor, model.capacity_factor);
  take(spec.inputs, model.inputs);
  take(spec.outputs, model.outputs);
  take(spec.widths, model.widths);
}

void fit_to_data(const Job& job, const DataSizes& data, ModelSpec& spec) {
  // 0 asks for what the data has; before the data is known that is 1, which validate() accepts.
  const auto fit = [&](std::int64_t& size, std::int64_t found, const char* key, const char* what) {
    if (size == 0) size = std::max<std::int64_t>(found, 1);
    if (found > 0 && size != found)
      throw config_error(job, key, fmt::format("the data has {} {}; leave it out", found, what));
  };
  if (spec.family == Family::kMlp) {
    fit(spec.inputs, data.inputs, "model.inputs", "features");
    fit(spec.outputs, data.outputs, "model.outputs", "classes or targets");
    return;
  }
  // A multiple of 64 rows suits matmuls; the rows beyond the tokenizer's entries are never labels.
  if (spec.vocab == 0) {
    spec.vocab = std::max<std::int64_t>((data.vocab + kVocabMultiple - 1) / kVocabMultiple, 1) *
                 kVocabMultiple;
  }
  if (spec.vocab < data.vocab) {
    throw config_error(
        job, "model.vocab",
        fmt::format(
            "the model has {} rows, the tokenizer {} entries; model.vocab = 0 takes what is needed",
            spec.vocab, data.vocab));
  }
  const std::int64_t needed = job.config.training.sequence_length;
  if (spec.sequence == 0) spec.sequence = needed;
  if (spec.sequence < needed) {
    throw config_error(job, "training.sequence_length",
                       fmt::format("longer than the model's longest sequence, {} (model.sequence)",
                                   spec.sequence));
  }
}

/// Returns the model before the data decides anything: what the name means, then what the job
/// changes.
ModelSpec changed_model(const Job& job) {
  ModelSpec spec = starting_point(job);
  reject_other_family(job, spec);
  take_sizes(job, spec);
  take_rest(job.config.model, spec);
  return spec;
}

/// model::validate names fields, "heads = 3: must divide hidden = 128"; the reader wants to know
/// which of them the job set, and where.
Error explained(const Job& job, const Error& error) {
  const std::string& what = error.message();
  const std::string first = what.substr(0, what.find(' '));
  std::vector<std::string> named;
  if (find_key("model", first)) named.push_back("model." + first);
  for (const ConfigKey& key : all_keys()) {
    if (key.section == "model" && what.find(" " + key.name + " = ") != std::string::npos)
      named.push_back(key.path());
  }
  const auto set = std::find_if(named.begin(), named.end(),
                                [&](const std::string& key) { return job.origins.contains(key); });
  const std::string model = job.config.model.name.empty()
                                ? ""
                                : fmt::format(" (model.name = \"{}\")", job.config.model.name);
  if (set == named.end() || *set == "model." + first) {
    return Error(ErrorKind::kConfig, "job",
                 fmt::format("{}: model.{}{}", set == named.end() ? job.file : job.origin(*set),
                             what, model));
  }
  return config_error(job, *set, what + model);
}

}  // namespace

std::vector<std::string> sizes_from_data(const Job& job) {
  const ModelSpec spec = changed_model(job);
  std::vector<std::string> keys;
  if (spec.family != Family::kMlp) {
    if (spec.vocab == 0) keys.emplace_back("model.vocab");
    return keys;
  }
  if (spec.inputs == 0) keys.emplace_back("model.inputs");
  if (spec.outputs == 0) keys.emplace_back("model.outputs");
  return keys;
}

ModelSpec model_spec(const Job& job, const DataSizes& data) {
  ModelSpec spec = changed_model(job);
  if (spec.family != Family::kMlp && spec.positions != model::Positions::kRotary &&
      job.config.model.rope_theta) {
    throw config_error(
        job, "model.rope_theta",
        "belongs to rotary positions, and this model's are learned (model.positions)");
  }
  fit_to_data(job, data, spec);
  const std::string name = spec.name;
  spec.name.clear();  // errors name the key; `explained` adds the model
  try {
    spec = model::complete(spec);
    model::validate(spec);
  } catch (const Error& error) {
    throw explained(job, error);
  }
  spec.name = name.empty() ? job.config.job.name : name;
  return spec;
}

}  // namespace shoal::train
