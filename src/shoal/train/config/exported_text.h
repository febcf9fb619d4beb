#pragma once

#include "shoal/checkpoint/format/hugging_face.h"
#include "shoal/data/tokenizer.h"

namespace shoal::train {

/// Returns what a Hugging Face folder says about text that `tokenizer` encodes: the files that
/// describe it (none for a tokenizer of Shoal's own), and the tokens that begin and end a document.
/// Where no token begins one, the token that ends the one before does. A tokenizer.json that came
/// alone gets a tokenizer_config.json that names its class and these tokens.
checkpoint::format::FolderText folder_text(const data::Tokenizer& tokenizer);

}  // namespace shoal::train
