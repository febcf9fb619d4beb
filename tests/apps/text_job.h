#pragma once

#include <fmt/format.h>

#include <cstdint>
#include <string>

#include "tests/apps/program.h"

namespace shoal::apps::testing {

/// Writes job.toml of a tiny transformer, and the texts of random letters that it prepares. `rest`
/// holds the sections behind [training].
inline void write_text_job(const Folder& folder, int layers, int steps, const std::string& rest) {
  std::string text;
  std::uint32_t state = 1;
  for (int i = 0; i < 4000; ++i) {
    state = state * 1664525 + 1013904223;
    text += static_cast<char>('a' + (state >> 24) % 26);
  }
  folder.write("text/0.txt", text);
  folder.write("text/1.txt", text.substr(0, 1000));
  folder.write("job.toml", fmt::format(R"([model]
name = "gpt2-tiny"
layers = {}
hidden = 16
heads = 2
kv_heads = 2
ffn = 32
vocab = 0
[data]
source = "tokens"
folders = ["corpus"]
prepare = "files"
prepare_from = ["text"]
tokenizer = "byte"
[training]
global_batch_sequences = 4
sequence_length = 16
micro_batch = 1
steps = {}
)",
                                       layers, steps) +
                               rest);
}

}  // namespace shoal::apps::testing
