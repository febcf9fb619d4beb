#pragma once

#include <cstdint>
#include <map>
#include <string>

#include "shoal/checkpoint/format/gguf/container.h"
#include "shoal/checkpoint/format/hugging_face.h"

namespace shoal::checkpoint::format::gguf {

/// Returns the files of a Hugging Face folder (tokenizer.json, tokenizer_config.json with the chat
/// template) that describe the tokenizer in the metadata of a GGUF file; nothing where it has none.
/// Byte-level BPE is known ("gpt2") with the pre-tokenizers gpt-2, llama-bpe, qwen2 and smollm.
/// Throws Error(data) that names what is not.
std::map<std::string, std::string> tokenizer_files(const Metadata& metadata);

/// Adds what `text` says to the metadata of a model with `vocab` rows in its embedding; rows that
/// are no tokens become unused ones. Returns an empty text, or why GGUF has no name for the
/// tokenizer: then nothing is added but the tokens that begin and end a text.
std::string add_tokenizer(const FolderText& text, std::int64_t vocab, Metadata& metadata);

}  // namespace shoal::checkpoint::format::gguf
