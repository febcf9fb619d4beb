#pragma once

#include "shoal/checkpoint/format/hugging_face.h"
#include "shoal/data/tokenizer.h"

namespace shoal::train {

/// Returns what a Hugging Face folder says about text that `tokenizer` encodes: the files that
/// describe it (none for a tokenizer of Shoal's own), and the tokens that begin and end a document.
/// A text begins with the token that stands before every text, or with `bos_token`, or else with
/// the token that ends the text before it. A tokenizer.json that came alone gets a
/// tokenizer_config.json that names its class and these tokens.
checkpoint::format::FolderText folder_text(const data::Tokenizer& tokenizer);

}  // namespace shoal::train
