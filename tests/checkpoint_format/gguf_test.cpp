#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <functional>
#include <map>
#include <nlohmann/json.hpp>

#include "shoal/base/error.h"
#include "shoal/base/narrow_float.h"
#include "shoal/checkpoint/format/difference.h"
#include "shoal/checkpoint/format/gguf/container.h"
#include "shoal/checkpoint/format/gguf/model.h"
#include "shoal/checkpoint/format/gguf/names.h"
#include "shoal/checkpoint/format/gguf/text.h"
#include "shoal/checkpoint/format/shard_writer.h"
#include "shoal/checkpoint/format/store.h"
#include "shoal/model/model_json.h"
#include "tests/checkpoint_format/scratch.h"
#include "tests/error_text.h"

namespace shoal::checkpoint::format::gguf_test {
namespace {

using namespace gguf;
using gguf::Header;  // safetensors have one too
using ::testing::HasSubstr;

model::ModelSpec gpt2() {
  model::ModelSpec spec;
  spec.name = "gpt2", spec.layers = 2, spec.hidden = 32, spec.heads = spec.kv_heads = 4,
  spec.head_size = 8, spec.ffn = 64, spec.vocab = 17, spec.sequence = 8;
  return spec;
}

model::ModelSpec llama(std::int64_t experts = 0) {
  model::ModelSpec spec = gpt2();
  spec.name = "llama", spec.kv_heads = 2, spec.bias = false, spec.gated = true;
  spec.positions = model::Positions::kRotary, spec.norm = model::Norm::kRms;
  spec.activation = model::Activation::kSilu, spec.tied_embeddings = experts > 0;
  spec.rope_theta = 50000, spec.experts = experts, spec.experts_per_token = experts ? 2 : 0;
  return spec;
}

model::ModelSpec stretched() {
  model::ModelSpec spec = llama();
  spec.rope_scaling = {.factor = 8, .low_frequency = 1, .high_frequency = 4};
  spec.rope_scaling.original_sequence = 4096;
  return spec;
}

model::ModelSpec qwen2() {
  model::ModelSpec spec = llama();
  spec.qkv_bias = true;
  return spec;
}

model::ModelSpec qwen3() {
  model::ModelSpec spec = llama();
  spec.qk_norm = true, spec.head_size = 12;
  return spec;
}

/// Element i of a parameter: f16 has it, and rows differ.
float made_up(std::int64_t i) { return static_cast<float>(i % 2039 - 1000); }

std::vector<float> made_up(const model::ParameterSpec& parameter) {
  std::vector<float> values;
  for (std::int64_t i = 0; i < parameter.count(); ++i) values.push_back(made_up(i));
  return values;
}

/// The values in another type of elements, which has them all.
std::vector<char> elements(const std::vector<float>& values, ElementType type) {
  std::vector<char> bytes(values.size() * size_of(type));
  for (std::size_t i = 0; i < values.size(); ++i) {
    const double wide = values[i];
    const std::uint16_t narrow =
        type == ElementType::kBF16 ? narrow_bf16(values[i]).bits : narrow_f16(values[i]).bits;
    char* const at = bytes.data() + i * size_of(type);
    if (type == ElementType::kF64) std::memcpy(at, &wide, sizeof wide);
    if (type == ElementType::kF32) std::memcpy(at, &values[i], sizeof values[i]);
    if (size_of(type) == 2) std::memcpy(at, &narrow, sizeof narrow);
  }
  return bytes;
}

std::string write_model(const std::string& directory, const model::ModelSpec& spec,
                        ElementType type = ElementType::kF32) {
  const std::string folder = begin_step(directory, 0);
  Manifest manifest{.metadata = "{\"model\":" + model::to_json(spec) + "}"};
  std::map<std::string, std::vector<char>> values;
  std::vector<Source> sources;
  for (const auto& parameter : model::parameters(spec)) {
    const char* data = (values[parameter.name] = elements(made_up(parameter), type)).data();
    sources.push_back({"model." + parameter.name, type, parameter.shape, whole(parameter.shape),
                       blocks_of(type, [data] { return data; })});
  }
  add_written(manifest, write_shards(folder, "shard-0000", sources, 1 << 30, false));
  write_text(folder + "/manifest.json", to_json(manifest), false);
  return commit_step(directory, 0, false);
}

TEST(Gguf, WhatIsExportedComesBack) {
  for (const model::ModelSpec& spec : {gpt2(), llama(), llama(3), stretched(), qwen2(), qwen3()}) {
    for (const BlockType type : {BlockType::kF32, BlockType::kF16}) {
      const testing::Scratch scratch;
      const std::string path = write_model(scratch / "ours", spec);
      Reader before(path);
      EXPECT_EQ(export_model(before, scratch / "it.gguf", {}, type), "it has no tokenizer.json");
      EXPECT_EQ(read_spec(scratch / "it.gguf"), spec)
          << model::to_json(read_spec(scratch / "it.gguf"));
      Reader after(import_model(scratch / "it.gguf", scratch / "back"));
      for (const Difference& difference : compare(before, after))
        ADD_FAILURE() << spec.name << ": " << difference.name;
      EXPECT_EQ(after.manifest().tensors.size(), model::parameters(spec).size());
    }
  }
}

std::vector<float> values_of(const std::string& path, const std::string& name) {
  const Header header = read_header(path);
  const Tensor* tensor = header.find(name);
  if (!tensor) throw std::runtime_error("no tensor " + name);
  std::vector<char> blocks(tensor->bytes());
  File::open(path).read(blocks.data(), tensor->offset, blocks.size());
  std::vector<float> values(count_of(tensor->shape));
  decode(tensor->type, blocks.data(), count_of(tensor->shape), values.data());
  return values;
}

// Small whole numbers, which all of the types have, but bf16 beyond 256: those are rounded.
TEST(Gguf, CheckpointsOfEveryFloatTypeAreExported) {
  for (const ElementType type : {ElementType::kBF16, ElementType::kF16, ElementType::kF64}) {
    const testing::Scratch scratch;
    Reader reader(write_model(scratch / "ours", gpt2(), type));
    export_model(reader, scratch / "it.gguf", {}, BlockType::kF32);
    const auto found = values_of(scratch / "it.gguf", "position_embd.weight");
    ASSERT_EQ(found.size(), 8u * 32);
    for (std::size_t i = 0; i < found.size(); ++i) {
      const float value = made_up(static_cast<std::int64_t>(i));
      EXPECT_EQ(found[i], type == ElementType::kBF16 ? widen(narrow_bf16(value)) : value) << i;
    }
  }
  const testing::Scratch scratch;
  Reader reader(write_model(scratch / "ours", gpt2()));
  const std::pair<BlockType, std::int64_t> numbers[] = {
      {BlockType::kF32, 0}, {BlockType::kF16, 1}, {BlockType::kBF16, 32}, {BlockType::kQ8_0, 7}};
  for (const auto& [type, number] : numbers) {
    export_model(reader, scratch / "it.gguf", {}, type);
    EXPECT_EQ(read_header(scratch / "it.gguf").metadata.integer("general.file_type"), number);
  }
}

// What cannot be written leaves nothing behind: here a checkpoint without its data.
TEST(Gguf, AnExportThatFailsLeavesNoFile) {
  const testing::Scratch scratch;
  const std::string path = write_model(scratch / "ours", gpt2());
  Reader reader(path);
  std::filesystem::remove(path + "/shard-0000-00.safetensors");
  EXPECT_THAT(error_text([&] { export_model(reader, scratch / "it.gguf", {}, BlockType::kF32); }),
              HasSubstr("is missing"));
  EXPECT_FALSE(std::filesystem::exists(scratch / "it.gguf"));
  EXPECT_FALSE(std::filesystem::exists(scratch / "it.gguf.partial"));
}

// Ours, where others say nothing: numbers that are not the usual ones come back.
TEST(Gguf, StretchedFrequenciesComeBackWithAllTheirNumbers) {
  model::ModelSpec spec = stretched();
  spec.rope_scaling.low_frequency = 1.5;
  spec.rope_scaling.high_frequency = 5;
  spec.rope_scaling.original_sequence = 2048;
  const Metadata metadata = metadata_of(spec);
  EXPECT_EQ(metadata.real("shoal.rope_scaling.low_frequency"), 1.5);
  EXPECT_EQ(metadata.real("shoal.rope_scaling.high_frequency"), 5);
  EXPECT_EQ(metadata.integer("shoal.rope_scaling.original_sequence"), 2048);
  EXPECT_FALSE(metadata_of(llama()).real("shoal.rope_scaling.low_frequency"));
  EXPECT_FALSE(metadata_of(llama()).integer("llama.expert_count"));
}

// ggml's llama turns neighbours: in a head of 8 elements 0 and 4 of ours, then 1 and 5.
TEST(Gguf, QueriesOfLlamaAreOrderedForNeighbours) {
  const testing::Scratch scratch;
  for (const model::ModelSpec& spec : {llama(), qwen2()}) {
    Reader reader(write_model(scratch / "ours", spec));
    export_model(reader, scratch / "it.gguf", {}, BlockType::kF32);
    const auto q = values_of(scratch / "it.gguf", "blk.1.attn_q.weight");
    const auto v = values_of(scratch / "it.gguf", "blk.1.attn_v.weight");
    for (int head = 0; head < 4; ++head) {
      for (int row = 0; row < 8; ++row) {
        const int turned = spec.qkv_bias ? row : row / 2 + row % 2 * 4;
        // Two groups of two queries, a key and a value; 8 rows of 32 each.
        const int ours = head / 2 * 32 + head % 2 * 8 + turned;
        EXPECT_EQ(q[(head * 8 + row) * 32], made_up(ours * 32));
      }
    }
    for (int row = 0; row < 8; ++row) EXPECT_EQ(v[row * 32], made_up((24 + row) * 32));
  }
}

// The formula of Hugging Face's "llama3", by the three cases in which it is published.
TEST(Gguf, StretchedFrequenciesAreATensor) {
  for (const double theta : {50000.0, 20000.0}) {
    const testing::Scratch scratch;
    model::ModelSpec spec = stretched();
    spec.rope_theta = theta;
    Reader reader(write_model(scratch / "ours", spec));
    export_model(reader, scratch / "it.gguf", {}, BlockType::kF16);
    const auto factors = values_of(scratch / "it.gguf", kRopeFactors);
    ASSERT_EQ(factors.size(), 4u);
    for (int i = 0; i < 4; ++i) {
      const double length = 2 * 3.14159265358979 * std::pow(theta, i / 4.0);
      double expected = 1;
      if (length > 4096) {
        expected = 8;
      } else if (length > 4096 / 4.0) {
        const double share = (4096 / length - 1) / 3;
        expected = 1 / ((1 - share) / 8 + share);
      }
      EXPECT_NEAR(factors[i], expected, 1e-5 * expected) << theta << " " << i;
    }
  }
}

TEST(Gguf, SmallTensorsStayPrecise) {
  const testing::Scratch scratch;
  Reader reader(write_model(scratch / "ours", gpt2()));
  export_model(reader, scratch / "it.gguf", {}, BlockType::kQ8_0);
  const Header header = read_header(scratch / "it.gguf");
  EXPECT_EQ(header.metadata.integer("general.file_type"), 7);
  EXPECT_EQ(header.find("token_embd.weight")->type, BlockType::kQ8_0);
  EXPECT_EQ(header.find("blk.0.ffn_up.bias")->type, BlockType::kF32);
  EXPECT_EQ(header.find("position_embd.weight")->type, BlockType::kF32);
  const testing::Scratch other;
  model::ModelSpec narrow = llama(3);
  narrow.ffn = 40;  // no multiple of 32
  Reader experts(write_model(other / "ours", narrow));
  export_model(experts, other / "it.gguf", {}, BlockType::kQ8_0);
  const Header mixed = read_header(other / "it.gguf");
  EXPECT_EQ(mixed.find("blk.0.ffn_down_exps.weight")->type, BlockType::kF16);
  EXPECT_EQ(mixed.find("blk.0.ffn_up_exps.weight")->type, BlockType::kQ8_0);
  EXPECT_EQ(mixed.find("blk.0.ffn_gate_inp.weight")->type, BlockType::kF32);
}

TEST(Gguf, ModelsWithoutANameThereAreRefused) {
  const auto refusal = [](const model::ModelSpec& spec) {
    return error_text([&] { tensors_of(spec); });
  };
  model::ModelSpec spec = llama(3);
  spec.router_score = model::RouterScore::kSigmoid, spec.router_bias = true, spec.shared_ffn = 64;
  EXPECT_THAT(refusal(spec), HasSubstr("experts of DeepSeek-V3"));
  spec = llama();
  spec.activation = model::Activation::kGelu;
  EXPECT_THAT(refusal(spec), HasSubstr("the activation is silu there"));
  spec = gpt2();
  spec.activation = model::Activation::kRelu;
  EXPECT_THAT(refusal(spec), HasSubstr("gelu_tanh"));
  spec = stretched();
  spec.qkv_bias = true;
  EXPECT_THAT(refusal(spec), HasSubstr("stretched rotary frequencies"));
  spec = gpt2();
  spec.norm = model::Norm::kRms;
  EXPECT_THAT(refusal(spec), HasSubstr("learned positions go with"));
}

/// A header of llama() in which something is changed, without the data.
struct Made {
  std::map<std::string, Value> values;
  std::vector<Tensor> tensors;

  Made() : Made(llama()) {}
  explicit Made(const model::ModelSpec& spec) : values(metadata_of(spec).values()) {
    for (const SameTensor& same : tensors_of(spec))
      tensors.push_back({same.theirs, BlockType::kF32, same.their_shape});
  }
  Header header() const {
    Header header{Metadata("it.gguf"), tensors};
    for (const auto& [key, value] : values) header.metadata.add(key, value);
    return header;
  }
};

TEST(Gguf, WhatASpecCannotExpressIsRefused) {
  const auto refusal = [](const std::function<void(Made&)>& change,
                          const std::vector<float>& factors = {}) {
    Made made;
    change(made);
    return error_text([&] { spec_of(made.header(), factors); });
  };
  const auto set = [](const std::string& key, Value value) {
    return [=](Made& made) { made.values[key] = value; };
  };
  EXPECT_EQ(refusal([](Made&) {}), "");
  EXPECT_THAT(refusal(set("general.architecture", std::string("mamba"))),
              HasSubstr("it.gguf: general.architecture is 'mamba'"));
  EXPECT_THAT(refusal(set("llama.logit_scale", 0.5)), HasSubstr("key llama.logit_scale is not"));
  EXPECT_EQ(refusal(set("mamba.logit_scale", 0.5)), "") << "a key of another architecture";
  EXPECT_THAT(refusal(set("llama.rope.dimension_count", std::int64_t{4})),
              HasSubstr("llama.rope.dimension_count is a part of a head"));
  EXPECT_THAT(refusal(set("llama.attention.value_length", std::int64_t{4})),
              HasSubstr("differs from the length of a key"));
  EXPECT_THAT(refusal(set("llama.attention.sliding_window", std::int64_t{4})),
              HasSubstr("windowed attention"));
  EXPECT_EQ(refusal(set("llama.attention.sliding_window", std::int64_t{8})), "");
  EXPECT_THAT(refusal([](Made& made) {
                made.values["llama.rope.scaling.type"] = std::string("yarn");
                made.values["llama.rope.scaling.factor"] = 4.0;
              }),
              HasSubstr("llama.rope.scaling.type = yarn"));
  EXPECT_THAT(refusal(set("llama.vocab_size", std::int64_t{16})),
              HasSubstr("is not the 17 rows of token_embd.weight"));
  EXPECT_THAT(refusal([](Made& made) { made.values.erase("llama.block_count"); }),
              HasSubstr("'it.gguf': llama.block_count is missing"));
  EXPECT_THAT(refusal(set("llama.block_count", std::string("2"))), HasSubstr("no whole number"));
  EXPECT_THAT(refusal(set("llama.attention.head_count_kv", std::int64_t{3})),
              HasSubstr("it.gguf: llama: kv_heads = 3"));
  for (const char* key : {"llama.block_count", "llama.feed_forward_length"})
    EXPECT_THAT(refusal(set(key, std::int64_t{9000})), HasSubstr("too few or too small")) << key;
  EXPECT_THAT(refusal([](Made& made) { made.tensors.erase(made.tensors.begin()); }),
              HasSubstr("there is no matrix 'token_embd.weight'"));
  EXPECT_THAT(refusal([](Made&) {}, {1, 2, 3, 4}),
              HasSubstr("does not have the factors of llama3"));
  EXPECT_THAT(refusal([](Made&) {}, {1, 8}), HasSubstr("does not have the factors of llama3"));
  EXPECT_EQ(refusal([](Made&) {}, {1, 1, 1, 1}), "");
}

TEST(Gguf, ANameThatIsNoTextIsLeftOut) {
  Made made;
  made.values["general.name"] = std::string("\xff");
  EXPECT_EQ(spec_of(made.header(), {}).name, "llama");
}

// What Llama 3.1 and 3.2 have, which no key says.
TEST(Gguf, FactorsOfPublishedModelsAreKnown) {
  model::ModelSpec spec = llama();
  spec.rope_theta = 500000, spec.rope_scaling.factor = 32;
  Made made(spec);
  std::erase_if(made.values, [](const auto& pair) { return pair.first.starts_with("shoal."); });
  EXPECT_EQ(spec_of(made.header(), rope_factors(spec)), spec);
}

TEST(Gguf, TensorsThatDoNotFitAreNamed) {
  const auto refusal = [](const std::function<void(std::vector<Tensor>&)>& change) {
    const testing::Scratch scratch;
    Made made;
    change(made.tensors);
    std::string bytes = render_header(made.header().metadata, made.tensors);
    bytes.resize(made.tensors.back().offset + made.tensors.back().bytes());
    testing::spill(scratch / "it.gguf", bytes);
    const std::string words =
        error_text([&] { import_model(scratch / "it.gguf", scratch / "back"); });
    EXPECT_EQ(list_steps(scratch / "back").empty(), !words.empty());
    return words;
  };
  EXPECT_EQ(refusal([](std::vector<Tensor>&) {}), "");
  EXPECT_THAT(
      refusal([](std::vector<Tensor>& tensors) { tensors[3].name = "blk.0.attn_x.weight"; }),
      HasSubstr("tensor 'blk.0.attn_k.weight' is missing"));
  EXPECT_THAT(refusal([](std::vector<Tensor>& tensors) {
                tensors.push_back({"x", {}, {1}, 0});
              }),
              HasSubstr("tensor 'x' has no place"));
  EXPECT_THAT(refusal([](std::vector<Tensor>& tensors) {
                tensors[3].shape = {32, 16};
              }),
              HasSubstr("'blk.0.attn_k.weight' is [32, 16], its metadata say [16, 32]"));
}

}  // namespace
}  // namespace shoal::checkpoint::format::gguf_test
