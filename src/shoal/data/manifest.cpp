#include "shoal/data/manifest.h"

#include <filesystem>
#include <nlohmann/json.hpp>

#include "shoal/base/check.h"
#include "shoal/base/number.h"
#include "shoal/data/file.h"

namespace shoal::data {
namespace {

using Json = nlohmann::ordered_json;

std::uint64_t parse_hex(const std::string& text) {
  const auto value = parse_number<std::uint64_t>(text, 16);
  if (!value) throw std::invalid_argument("'" + text + "' is not a hexadecimal number");
  return *value;
}

// 64-bit hashes are written as hexadecimal text: readers that keep numbers as doubles would round
// them.
Json to_object(const SplitEntry& split) {
  Json shards = Json::array();
  for (const ShardEntry& shard : split.shards) {
    shards.push_back({{"file", shard.file},
                      {"tokens", shard.tokens},
                      {"documents", shard.documents},
                      {"bytes", shard.bytes},
                      {"crc32", fmt::format("{:08x}", shard.crc32)}});
  }
  return {{"tokens", split.tokens},
          {"documents", split.documents},
          {"bytes", split.bytes},
          {"shards", shards},
          {"files", split.files}};
}

SplitEntry to_split(const Json& json) {
  SplitEntry split{json.at("tokens"), json.at("documents"), json.at("bytes"), {}, json.at("files")};
  for (const Json& shard : json.at("shards")) {
    split.shards.push_back({shard.at("file"), shard.at("tokens"), shard.at("documents"),
                            shard.at("bytes"),
                            static_cast<std::uint32_t>(parse_hex(shard.at("crc32")))});
  }
  return split;
}

}  // namespace

std::string to_json(const Manifest& m) {
  Json json = {{"format", "shoal-dataset"},
               {"version", 1},
               {"fingerprint", fmt::format("{:016x}", m.fingerprint)},
               {"options", m.options}};
  json["source"] = {{"files", m.source.files},
                    {"bytes", m.source.bytes},
                    {"empty_files", m.source.empty_files},
                    {"near_duplicate_files", m.source.near_duplicate_files},
                    {"near_duplicate_bytes", m.source.near_duplicate_bytes},
                    {"repeated_passages", m.source.repeated_passages},
                    {"repeated_passage_bytes", m.source.repeated_passage_bytes}};
  if (m.source.binary_files > 0) {
    json["source"]["binary_files"] = m.source.binary_files;
    json["source"]["binary_bytes"] = m.source.binary_bytes;
  }
  json["tokenizer"] = {{"file", kTokenizerFile},
                       {"name", m.tokenizer_name},
                       {"vocab_size", m.vocab_size},
                       {"crc32", fmt::format("{:08x}", m.tokenizer_crc32)}};
  for (const auto& [name, split] : m.splits) json["splits"][name] = to_object(split);
  // Paths may hold bytes that are not UTF-8.
  return json.dump(1, ' ', false, Json::error_handler_t::replace) + "\n";
}

Manifest parse_manifest(const std::string& text, const std::string& origin) {
  try {
    // Whatever is missing or of the wrong type ends as an exception of the library, and all of
    // these as one error that names the file.
    const Json json = Json::parse(text);
    // An unknown version is refused: its fields might mean something else.
    if (json.at("format") != "shoal-dataset" || json.at("version") != 1)
      throw std::invalid_argument("not a shoal-dataset of version 1");
    Manifest m;
    m.fingerprint = parse_hex(json.at("fingerprint"));
    m.options = json.at("options").get<std::map<std::string, std::string>>();
    const Json& source = json.at("source");
    m.source = {source.at("files"),
                source.at("bytes"),
                source.at("empty_files"),
                source.at("near_duplicate_files"),
                source.at("near_duplicate_bytes"),
                source.at("repeated_passages"),
                source.at("repeated_passage_bytes"),
                source.value("binary_files", std::uint64_t{0}),
                source.value("binary_bytes", std::uint64_t{0})};
    m.tokenizer_name = json.at("tokenizer").at("name");
    m.vocab_size = json.at("tokenizer").at("vocab_size");
    m.tokenizer_crc32 = static_cast<std::uint32_t>(parse_hex(json.at("tokenizer").at("crc32")));
    for (const auto& [name, split] : json.at("splits").items()) m.splits[name] = to_split(split);
    return m;
  } catch (const std::exception& error) {
    throw Error(ErrorKind::kData, "dataset",
                fmt::format("{} is not a manifest: {}", origin, error.what()))
        .hint("delete it and run `shoal data prepare` again");
  }
}

Manifest read_manifest(const std::string& folder) {
  const std::string path = folder + "/" + kManifestFile;
  if (!std::filesystem::exists(path)) {
    Error error(ErrorKind::kInputMissing, "dataset",
                fmt::format("{} holds no dataset: there is no {}", folder, kManifestFile));
    throw error.hint(std::filesystem::exists(folder + "/" + kTokenizerFile)
                         ? "preparing it was interrupted; run `shoal data prepare` again"
                         : "make one with `shoal data prepare`");
  }
  return parse_manifest(read_file(path), path);
}

}  // namespace shoal::data
