#pragma once

#include <fmt/format.h>

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "shoal/data/dataset.h"
#include "shoal/data/prepare.h"

namespace shoal::train {

/// The number of the token that closes a document of a data set of bytes.
inline constexpr std::int64_t kEndOfDocument = 256;

/// A data set of bytes in a folder, and the tokens of its splits as the test that wrote its
/// documents knows them.
struct TokenCorpus {
  std::string folder;
  std::vector<std::int64_t> train, validation;

  const std::vector<std::int64_t>& split(const std::string& name) const {
    return name == "train" ? train : validation;
  }
};

/// Prepares `documents` below `folder`. Only the side that each document fell on, which is drawn
/// from its name, is read back from the data set: its tokens are its bytes and the end.
inline TokenCorpus prepare_corpus(const std::string& folder,
                                  const std::vector<std::string>& documents,
                                  double validation_fraction,
                                  std::uint64_t shard_tokens = 1 << 20) {
  std::filesystem::create_directories(folder + "/text");
  data::PrepareOptions options;
  options.inputs = {folder + "/text"};
  options.out = folder + "/data";
  options.tokenizer = data::TokenizerKind::kBytes;
  options.validation_fraction = validation_fraction;
  options.drop_duplicates = false;
  options.shard_tokens = shard_tokens;
  options.keep_binary = true;  // the bytes stand for tokens, zeros too
  for (std::size_t i = 0; i < documents.size(); ++i)
    std::ofstream(fmt::format("{}/text/{:04}", folder, i), std::ios::binary) << documents[i];
  data::prepare(options);

  TokenCorpus corpus{.folder = options.out, .train = {}, .validation = {}};
  for (const bool train : {true, false}) {
    const auto dataset = data::TokenDataset::open(options.out, train ? "train" : "validation");
    auto& tokens = train ? corpus.train : corpus.validation;
    for (const std::string& file : dataset.files()) {
      const std::size_t number = std::stoul(std::filesystem::path(file).filename().string());
      for (const char byte : documents[number]) tokens.push_back(static_cast<unsigned char>(byte));
      tokens.push_back(kEndOfDocument);
    }
  }
  return corpus;
}

}  // namespace shoal::train
