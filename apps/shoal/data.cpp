#include <fmt/chrono.h>
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <thread>
#include <vector>

#include "apps/shoal/command.h"
#include "apps/shoal/option_checks.h"
#include "apps/shoal/progress_line.h"
#include "shoal/base/check.h"
#include "shoal/base/philox.h"
#include "shoal/data/dataset.h"
#include "shoal/data/file.h"
#include "shoal/data/headers.h"
#include "shoal/data/hugging_face_tokenizer.h"
#include "shoal/data/manifest.h"
#include "shoal/data/ngram.h"
#include "shoal/data/prepare.h"
#include "shoal/train/config/model_source.h"

namespace shoal::apps {
namespace {

using data::TokenDataset;

void print_split(const std::string& name, const data::SplitEntry& split) {
  if (split.tokens == 0) {
    fmt::print("{:<11}  empty\n", name);
    return;
  }
  fmt::print("{:<11}  {} tokens, {} documents, {} bytes, {:.3f} bytes a token, {} shards\n", name,
             split.tokens, split.documents, split.bytes,
             static_cast<double>(split.bytes) / static_cast<double>(split.tokens),
             split.shards.size());
}

void print_summary(const std::string& folder, const data::Manifest& manifest) {
  const auto& source = manifest.source;
  fmt::print("dataset      {} (fingerprint {:016x})\n", folder, manifest.fingerprint);
  fmt::print("source       {} files, {} bytes\n", source.files, source.bytes);
  fmt::print(
      "left out     {} near-duplicate files ({} bytes), {} repeated passages ({} bytes), {} empty "
      "files\n",
      source.near_duplicate_files, source.near_duplicate_bytes, source.repeated_passages,
      source.repeated_passage_bytes, source.empty_files);
  if (source.binary_files > 0) {
    fmt::print("             {} files that are no text ({} bytes)\n", source.binary_files,
               source.binary_bytes);
  }
  fmt::print("tokenizer    {}, {} entries\n", manifest.tokenizer_name, manifest.vocab_size);
  for (const auto& [name, split] : manifest.splits) print_split(name, split);
}

void print_binary_files(const std::vector<data::BinaryFile>& files) {
  constexpr std::size_t kNamed = 5;
  for (std::size_t i = 0; i < std::min(files.size(), kNamed); ++i) {
    fmt::print(stderr, "shoal: {} looks binary ({}): left out; --binary keeps such files\n",
               files[i].name, files[i].reason);
  }
  if (files.size() > kNamed)
    fmt::print(stderr, "shoal: and {} more such files\n", files.size() - kNamed);
}

/// Opens the tokenizer that `path` names, as data::open_tokenizer does, also that of a GGUF file.
std::shared_ptr<const data::Tokenizer> tokenizer_at(const std::string& path) {
  if (!train::is_gguf(path)) return data::open_tokenizer(path);
  if (auto tokenizer = train::tokenizer_of(train::find_model(path))) return tokenizer;
  throw Error(ErrorKind::kInputMissing, "tokenizer", path + " has no tokenizer");
}

struct PrepareArguments {
  data::PrepareOptions options;
  std::string corpus, torch_include = data::default_header_folder(), tokenizer = "bpe";
  bool keep_duplicates = false;
};

void run_prepare(PrepareArguments arguments) {
  data::PrepareOptions& options = arguments.options;
  if (arguments.corpus.empty() && options.inputs.empty()) {
    throw Error(ErrorKind::kUsage, "data prepare", "nothing to prepare")
        .hint("name files or folders with --input, or --corpus headers");
  }
  if (!arguments.corpus.empty() && !options.inputs.empty())
    throw Error(ErrorKind::kUsage, "data prepare", "--corpus and --input exclude each other");
  if (!arguments.corpus.empty()) {
    if (arguments.torch_include.empty()) {
      throw Error(ErrorKind::kUsage, "data prepare",
                  "this program was built without Torch; name the include folder of torch 2.11.0 "
                  "with --torch-include");
    }
    options.headers = arguments.torch_include;
  }
  if (arguments.tokenizer == "byte") {
    options.tokenizer = data::TokenizerKind::kBytes;
  } else if (arguments.tokenizer != "bpe") {
    options.tokenizer = data::TokenizerKind::kGiven;
    options.given = tokenizer_at(arguments.tokenizer);
  }
  options.drop_duplicates = !arguments.keep_duplicates;
  ProgressLine line;
  const auto result =
      data::prepare(options, [&](const std::string& stage, std::uint64_t done,
                                 std::uint64_t total) { line(stage, done, total); });
  if (result.already_prepared) {
    fmt::print("{} is already prepared: nothing to do\n", options.out);
  } else if (result.shards_reused > 0) {
    fmt::print("went on from an interrupted run: {} shards were whole\n", result.shards_reused);
  }
  print_binary_files(result.binary_files);
  print_summary(options.out, result.manifest);
}

void add_prepare(CLI::App& parent) {
  auto arguments = std::make_shared<PrepareArguments>();
  auto& options = arguments->options;
  options.threads = static_cast<int>(std::max(1u, std::thread::hardware_concurrency()));
  CLI::App* command = parent.add_subcommand(
      "prepare",
      "Make a dataset of files: remove duplicates, split, train a tokenizer, write token shards");
  command->add_option("-o,--out", options.out, "Folder of the dataset")->required();
  command->add_option("-i,--input", options.inputs, "Files or folders to read; may be repeated");
  CLI::Option* suffix =
      command->add_option("--suffix", options.suffixes,
                          "Of folders, read only files that end so (.h, .txt); may be repeated");
  CLI::Option* corpus =
      command
          ->add_option("--corpus", arguments->corpus,
                       "A corpus that Shoal knows: headers, the C++ headers of LibTorch")
          ->check(CLI::IsMember({"headers"}))
          ->excludes(suffix);
  command
      ->add_option("--torch-include", arguments->torch_include,
                   "Where the headers of torch 2.11.0 lie")
      ->capture_default_str()
      ->needs(corpus);
  command
      ->add_option("--tokenizer", arguments->tokenizer,
                   "bpe is trained on the text; byte needs no training; or that of a model: a "
                   "Hugging Face folder, its tokenizer.json, a GGUF file, or a tokenizer.model of "
                   "Shoal")
      ->capture_default_str();
  CLI::Option* vocab =
      command->add_option("--vocab", options.vocab_size, "Entries of the BPE vocabulary at most")
          ->check(CLI::Range(258, 1'000'000))
          ->capture_default_str();
  CLI::Option* tokenizer_bytes =
      command
          ->add_option("--tokenizer-bytes", options.tokenizer_bytes,
                       "How much training text the BPE tokenizer is trained on at most")
          ->check(CLI::PositiveNumber)
          ->capture_default_str();
  command
      ->add_option("--validation-fraction", options.validation_fraction,
                   "Share of the files that becomes the validation split")
      ->check(CLI::Range(0.0, 0.99))
      ->capture_default_str();
  command
      ->add_option("--shard-tokens", options.shard_tokens, "Tokens after which a new shard begins")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  command->add_option("--seed", options.seed, "Chooses the validation files")
      ->check(not_negative())
      ->capture_default_str();
  command->add_option("--threads", options.threads, "Threads; the result does not depend on it")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  command->add_flag("--keep-duplicates", arguments->keep_duplicates,
                    "Keep near-duplicate files and repeated passages");
  command->add_flag("--binary", options.keep_binary,
                    "Keep files that look binary: with NUL bytes, or hardly any UTF-8, at their "
                    "beginning");
  command->callback([arguments, vocab, tokenizer_bytes] {
    for (const CLI::Option* option : {vocab, tokenizer_bytes}) {
      if (arguments->tokenizer != "bpe" && option->count() > 0) {
        throw Error(ErrorKind::kUsage, "data prepare",
                    fmt::format("{} is of the BPE tokenizer that is trained, and --tokenizer is {}",
                                option->get_name(), arguments->tokenizer));
      }
    }
    run_prepare(*arguments);
  });
}

struct PeekArguments {
  std::string folder, split = "train";
  std::uint64_t samples = 3, tokens = 128, seed = 0;
  bool ids = false;
};

void run_peek(const PeekArguments& arguments) {
  const auto dataset = TokenDataset::open(arguments.folder, arguments.split, data::Check::kHeaders);
  const std::uint64_t length = std::min(arguments.tokens, dataset.tokens());
  const auto begins = dataset.document_begins();
  for (std::uint64_t i = 0; i < arguments.samples; ++i) {
    // A window anywhere in the split, the same for the same seed.
    const std::uint64_t start =
        Key(arguments.seed).child("peek").below(i, dataset.tokens() - length + 1);
    std::vector<std::uint32_t> tokens(length);
    dataset.copy(start, std::span(tokens));
    const std::size_t document =
        std::upper_bound(begins.begin(), begins.end(), start) - begins.begin() - 1;
    fmt::print("--- tokens {} to {} of {}, from {} on\n", start, start + length, dataset.tokens(),
               dataset.files()[document]);
    for (const std::uint32_t token : tokens) {
      if (arguments.ids) fmt::print("[{}]", token);
      fmt::print("{}", token == dataset.tokenizer().end_of_document()
                           ? "\n--- end of document\n"
                           : dataset.tokenizer().bytes_of(token));
    }
    fmt::print("\n");
  }
}

void add_peek(CLI::App& parent) {
  auto arguments = std::make_shared<PeekArguments>();
  CLI::App* command = parent.add_subcommand("peek", "Show samples of a dataset as text");
  command->add_option("folder", arguments->folder, "Folder of the dataset")->required();
  command->add_option("--split", arguments->split, "Which part of the dataset")
      ->check(CLI::IsMember({"train", "validation"}))
      ->capture_default_str();
  command->add_option("-n,--samples", arguments->samples, "How many samples")
      ->check(not_negative())
      ->capture_default_str();
  command->add_option("--tokens", arguments->tokens, "Tokens of a sample")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  command->add_option("--seed", arguments->seed, "Chooses the samples")
      ->check(not_negative())
      ->capture_default_str();
  command->add_flag("--ids", arguments->ids, "Print the number of each token before its text");
  command->callback([arguments] { run_peek(*arguments); });
}

struct StatsArguments {
  std::string folder;
  std::vector<int> orders = {1, 2, 3, 5};
  bool json = false;
};

std::vector<std::uint32_t> all_tokens(const TokenDataset& dataset) {
  std::vector<std::uint32_t> tokens(dataset.tokens());
  dataset.copy(0, std::span(tokens));
  return tokens;
}

nlohmann::ordered_json describe(const TokenDataset& dataset) {
  return {{"tokens", dataset.tokens()},
          {"documents", dataset.documents()},
          {"bytes", dataset.bytes()},
          {"bytes_per_token",
           static_cast<double>(dataset.bytes()) / static_cast<double>(dataset.tokens())}};
}

void run_stats(const StatsArguments& arguments) {
  const auto train = TokenDataset::open(arguments.folder, "train");
  const auto validation = TokenDataset::open(arguments.folder, "validation");
  const auto train_tokens = all_tokens(train);
  const auto validation_tokens = all_tokens(validation);
  const auto text = [](const TokenDataset& dataset, const std::vector<std::uint32_t>& tokens) {
    return data::TokenText{tokens, dataset.vocab_size(), dataset.tokenizer().end_of_document()};
  };
  nlohmann::ordered_json result = {{"vocab_size", train.vocab_size()},
                                   {"train", describe(train)},
                                   {"validation", describe(validation)}};
  if (!arguments.json) print_summary(arguments.folder, data::read_manifest(arguments.folder));
  if (!arguments.json) {
    fmt::print(
        "\nInterpolated n-gram models (Jelinek-Mercer) of the training tokens, on the validation "
        "split:\n{:>5}  {:>13}  {:>14}\n",
        "n", "bits per byte", "nats per token");
  }
  for (const int order : arguments.orders) {
    // A trained model must need fewer bits than this model of counts on the same split.
    const double bits = data::NgramModel(text(train, train_tokens), order)
                            .bits(text(validation, validation_tokens));
    const double per_byte = bits / static_cast<double>(validation.bytes());
    // bits times ln 2: nats, as a training loss is
    const double per_token = bits * 0.6931471805599453 / static_cast<double>(validation.tokens());
    result["ngrams"].push_back({{"n", order}, {"bits_per_byte", per_byte}, {"loss", per_token}});
    if (!arguments.json) fmt::print("{:>5}  {:>13.4f}  {:>14.4f}\n", order, per_byte, per_token);
  }
  if (arguments.json) fmt::print("{}\n", result.dump(1));
}

void add_stats(CLI::App& parent) {
  auto arguments = std::make_shared<StatsArguments>();
  CLI::App* command = parent.add_subcommand(
      "stats", "Count tokens and documents, and measure n-gram models, in bits per byte");
  command->add_option("folder", arguments->folder, "Folder of the dataset")->required();
  command->add_option("--orders", arguments->orders, "The n of the n-gram models")
      ->check(CLI::Range(1, 8))
      ->delimiter(',')
      ->capture_default_str();
  command->add_flag("--json", arguments->json, "Print one JSON object");
  command->callback([arguments] { run_stats(*arguments); });
}

struct EncodeArguments {
  std::string tokenizer, input;
};

void run_encode(const EncodeArguments& arguments) {
  const auto tokenizer = tokenizer_at(arguments.tokenizer);
  std::string line;
  for (const std::uint32_t token : tokenizer->encode(data::read_file(arguments.input)))
    line += fmt::format("{}{}", line.empty() ? "" : " ", token);
  fmt::print("{}\n", line);
}

void add_encode(CLI::App& parent) {
  auto arguments = std::make_shared<EncodeArguments>();
  CLI::App* command = parent.add_subcommand("encode", "Print the numbers of a text's tokens");
  command
      ->add_option(
          "--tokenizer", arguments->tokenizer,
          "byte, or that of a model: a Hugging Face folder, its tokenizer.json, a GGUF file, "
          "a run directory or a tokenizer.model of Shoal")
      ->required();
  command->add_option("input", arguments->input, "The file with the text")->required();
  command->callback([arguments] { run_encode(*arguments); });
}

void run_verify(const std::string& folder) {
  const data::Manifest manifest = data::read_manifest(folder);
  for (const auto& [name, split] : manifest.splits) {
    if (split.tokens == 0) continue;
    const auto dataset = TokenDataset::open(folder, name, data::Check::kBodies);
    // Beyond the checksums: the tokens are in the vocabulary and stand for as many bytes as was
    // promised.
    const std::uint64_t bytes = dataset.bytes_of(0, dataset.tokens());
    if (bytes != dataset.bytes()) {
      throw Error(ErrorKind::kData, "data verify",
                  fmt::format("the tokens of {} stand for {} bytes, not {}", dataset.name(), bytes,
                              dataset.bytes()));
    }
  }
  print_summary(folder, manifest);
  fmt::print("every checksum is right\n");
}

void add_verify(CLI::App& parent) {
  auto folder = std::make_shared<std::string>();
  CLI::App* command = parent.add_subcommand("verify", "Check every checksum of a dataset");
  command->add_option("folder", *folder, "Folder of the dataset")->required();
  command->callback([folder] { run_verify(*folder); });
}

}  // namespace

void add_data_command(CLI::App& program) {
  CLI::App* command = program.add_subcommand("data", "Prepare datasets and look into them");
  command->require_subcommand(1);
  add_prepare(*command);
  add_peek(*command);
  add_encode(*command);
  add_stats(*command);
  add_verify(*command);
}

}  // namespace shoal::apps
