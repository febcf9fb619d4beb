#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>

#include "shoal/checkpoint/format/reader.h"

namespace shoal::checkpoint::format {

/// The part of a Hugging Face folder that describes text.
struct FolderText {
  /// Files of the tokenizer, name -> content; they are written as they are.
  std::map<std::string, std::string> files;
  std::optional<std::int64_t> begin, end;  ///< the tokens that begin and end a document
  bool begins = false;                     ///< `begin` stands before every text
};

/// Writes the model of a checkpoint as a Hugging Face folder that transformers reads: config.json,
/// generation_config.json (unless `text` has one), the files of `text`, and model.safetensors, cut
/// into numbered files with an index beyond `max_file_bytes`. Values are what they are in the
/// checkpoint. Files of another model that would be read beside these are removed from the folder.
/// The metadata must have the model under "model" (model::to_json), tensors be named
/// `model.<canonical name>`. Throws Error(config) for an architecture that Hugging Face has no name
/// for, Error(data), Error(output).
void export_hugging_face(Reader& from, const std::string& folder, const FolderText& text = {},
                         std::int64_t max_file_bytes = std::int64_t{5} << 30);

/// Makes a checkpoint `directory`/step-0 of a Hugging Face folder (config.json; model.safetensors,
/// or files with model.safetensors.index.json), with f16 and bf16 widened to f32. Tensors that are
/// no parameters (masks, rotary frequencies) and a tied output matrix are left out. Returns its
/// path. Throws Error(config) for a model that Shoal cannot express, Error(data) that names the
/// tensor that is missing, foreign or misshapen.
std::string import_hugging_face(const std::string& folder, const std::string& directory);

}  // namespace shoal::checkpoint::format
