#pragma once

#include <map>
#include <memory>
#include <string>
#include <string_view>

#include "shoal/data/tokenizer.h"

namespace shoal::data {

/// The files of a Hugging Face model folder that are about text: name -> content.
using TokenizerFiles = std::map<std::string, std::string>;

/// Returns the tokenizer that `files` describe: "tokenizer.json" and, where there are any,
/// "tokenizer_config.json", "special_tokens_map.json", "generation_config.json" and
/// "chat_template.jinja", which it keeps as they are.
///
/// It gives the tokens of Hugging Face's `tokenizers` for any text that is UTF-8. Bytes that are
/// not are tokens of themselves, so they survive; text that is not in the normalization form of the
/// tokenizer (NFC for Qwen) comes back in it.
///
/// The end of a document is `eos_token` of tokenizer_config.json or special_tokens_map.json, or
/// else the token of the vocabulary that usually has this meaning, such as `<|endoftext|>`. Throws
/// Error(data), which begins with `origin`, as parse_tokenizer_json does, and where none is found.
std::shared_ptr<const Tokenizer> hugging_face_tokenizer(TokenizerFiles files,
                                                        const std::string& origin);

/// Reads the tokenizer at `path`: a model folder, or a tokenizer.json, of which the other files lie
/// beside it. Throws Error(input missing), and as hugging_face_tokenizer.
std::shared_ptr<const Tokenizer> read_hugging_face_tokenizer(const std::string& path);

/// Opens the tokenizer that `path` names: "byte"; a file that Tokenizer::save wrote, or a folder
/// with one (a run directory, a data set); or what read_hugging_face_tokenizer takes. Throws
/// Error(input missing) and Error(data).
std::shared_ptr<const Tokenizer> open_tokenizer(const std::string& path);

/// Reads the files that Tokenizer::serialize put behind its first line. Throws Error(data) that
/// names `origin`.
std::shared_ptr<const Tokenizer> parse_hugging_face_files(std::string_view text,
                                                          const std::string& origin);

}  // namespace shoal::data
