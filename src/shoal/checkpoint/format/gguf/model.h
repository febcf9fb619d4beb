#pragma once

#include <string>

#include "shoal/checkpoint/format/gguf/block_type.h"
#include "shoal/checkpoint/format/hugging_face.h"
#include "shoal/checkpoint/format/reader.h"
#include "shoal/model/model_spec.h"

namespace shoal::checkpoint::format::gguf {

/// Returns the model that the GGUF file at `path` holds, from its metadata and the list of its
/// tensors. Throws Error(input missing), Error(data), and Error(config) for a model that Shoal
/// cannot express.
model::ModelSpec read_spec(const std::string& path);

/// Makes a checkpoint `directory`/step-0 of the GGUF file at `path`, in f32: elements of blocks
/// become what they stand for. Returns its path. Throws as read_spec, and Error(data) that names
/// the tensor that is missing, foreign or misshapen.
std::string import_model(const std::string& path, const std::string& directory);

/// Writes the model of a checkpoint as one GGUF file that llama.cpp reads; it has its name when it
/// is whole. Matrices become `type`, or f16 where their rows are no whole blocks of it; norms,
/// biases, learned positions and routers stay f32. Returns an empty text, or why the tokenizer of
/// `text` is left out. Throws Error(config) for a model that GGUF has no name for, Error(data),
/// Error(output).
std::string export_model(Reader& from, const std::string& path, const FolderText& text,
                         BlockType type);

}  // namespace shoal::checkpoint::format::gguf
