#include <fuzzer/FuzzedDataProvider.h>

#include <cstring>

#include "shoal/checkpoint/format/gguf/container.h"
#include "shoal/checkpoint/format/gguf/names.h"
#include "shoal/checkpoint/format/gguf/text.h"
#include "shoal/model/model_json.h"
#include "tests/fuzz/fuzz.h"

namespace {

using namespace shoal::checkpoint::format;

/// A sound file before its data: a llama of one block, with a tokenizer.
std::string sound_header() {
  shoal::model::ModelSpec spec;
  spec.layers = 1, spec.hidden = 4, spec.heads = spec.kv_heads = 1, spec.head_size = 4;
  spec.ffn = 4, spec.vocab = 4, spec.sequence = 4, spec.bias = false, spec.gated = true;
  spec.positions = shoal::model::Positions::kRotary, spec.norm = shoal::model::Norm::kRms;
  spec.activation = shoal::model::Activation::kSilu;
  gguf::Metadata metadata = gguf::metadata_of(spec);
  metadata.add("tokenizer.ggml.model", std::string("gpt2"));
  metadata.add("tokenizer.ggml.pre", std::string("smollm"));
  metadata.add("tokenizer.ggml.tokens", std::vector<std::string>{"a", "b", "ab", "<e>"});
  metadata.add("tokenizer.ggml.token_type", std::vector<std::int64_t>{1, 1, 4, 3});
  metadata.add("tokenizer.ggml.merges", std::vector<std::string>{"a b"});
  metadata.add("tokenizer.ggml.bos_token_id", std::int64_t{3});
  metadata.add("tokenizer.ggml.add_bos_token", true);
  std::vector<gguf::Tensor> tensors;
  for (const SameTensor& same : gguf::tensors_of(spec))
    tensors.push_back({same.theirs, gguf::BlockType::kF32, same.their_shape});
  return gguf::render_header(metadata, tensors);
}

void check(const std::string& bytes, std::int64_t file_bytes) {
  const auto read = [&](void* data, std::int64_t offset, std::size_t count) {
    shoal::fuzz::must(offset >= 0 && offset + static_cast<std::int64_t>(count) <= file_bytes,
                      "no byte behind the end of the file is read");
    std::memset(data, 0, count);
    const auto begin = std::min<std::size_t>(offset, bytes.size());
    std::memcpy(data, bytes.data() + begin, std::min(count, bytes.size() - begin));
  };
  gguf::Header header;
  if (!shoal::fuzz::accepted([&] { header = gguf::parse_header(read, file_bytes, "file"); }))
    return;
  for (const gguf::Tensor& tensor : header.tensors) {
    shoal::fuzz::must(
        tensor.offset >= 0 && tensor.bytes() >= 0 && tensor.bytes() <= file_bytes - tensor.offset,
        "every tensor lies in the file");
  }
  shoal::fuzz::accepted([&] { gguf::tokenizer_files(header.metadata); });
  for (const std::vector<float>& factors : {std::vector<float>{1, 8}, {}}) {
    shoal::fuzz::accepted([&] {
      const shoal::model::ModelSpec spec = gguf::spec_of(header, factors);
      gguf::tensors_of(spec);
      shoal::fuzz::must(shoal::model::from_json(shoal::model::to_json(spec)) == spec,
                        "a checkpoint keeps the model");
    });
  }
}

}  // namespace

// A GGUF file. The input is its first bytes, behind the magic number; or it changes, inserts and
// removes bytes of a sound header. What follows is zeros, so many that the tensors have room.
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static const std::string sound = sound_header();
  constexpr std::int64_t kData = 1 << 12;
  FuzzedDataProvider input(data, size);
  std::string bytes;
  if (input.ConsumeBool()) {
    bytes = std::string("GGUF\3\0\0\0", 8) + input.ConsumeRemainingBytesAsString();
  } else {
    bytes = sound;
    while (input.remaining_bytes() > 0) {
      const auto at = input.ConsumeIntegralInRange<std::size_t>(0, bytes.size());
      const auto gone = input.ConsumeIntegralInRange<std::size_t>(0, 16);
      bytes.replace(at, gone, input.ConsumeRandomLengthString(16));
    }
  }
  check(bytes, static_cast<std::int64_t>(bytes.size()) + kData);
  return 0;
}
