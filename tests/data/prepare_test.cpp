#include "shoal/data/prepare.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>

#include <atomic>
#include <chrono>
#include <cmath>
#include <filesystem>
#include <random>
#include <set>
#include <thread>

#include "shoal/base/error.h"
#include "shoal/data/dataset.h"
#include "shoal/data/file.h"
#include "tests/data/folder.h"
#include "tests/data/sentencepiece_model.h"

namespace shoal::data::prepare_test {
namespace {

/// Writes `count` files of made-up code below folder/in.
void write_corpus(const Folder& folder, int count, int lines = 40) {
  std::mt19937 random(3);
  const char* words[] = {"int", "return", "value", "size_t", "std::vector", "for", "template", "x",
                         "y",   "count",  "= 0;",  "(",      ")",           "{",   "}"};
  for (int i = 0; i < count; ++i) {
    std::string text = fmt::format("// file {}\n", i);
    for (int line = 0; line < lines; ++line) {
      for (int k = 0; k < 6; ++k) {
        text += fmt::format(" {}{}", words[random() % std::size(words)],
                            random() % 3 ? "" : fmt::format("{}", random() % 50));
      }
      text += line % 7 == 6 ? "\n\n" : "\n";
    }
    folder.write(fmt::format("in/d{}/f{}.h", i % 3, i), text);
  }
}

PrepareOptions options_for(const Folder& folder, const std::string& out = "out") {
  PrepareOptions options;
  options.inputs = {folder / "in"};
  options.out = folder / out;
  options.vocab_size = 400;
  options.validation_fraction = 0.2;
  options.shard_tokens = 2000;
  return options;
}

std::uint64_t documents(const Manifest& manifest) {
  return manifest.splits.at("train").documents + manifest.splits.at("validation").documents;
}

void expect_error(ErrorKind kind, const std::string& words, const std::function<void()>& body) {
  try {
    body();
    ADD_FAILURE() << "no error; expected: " << words;
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), kind) << error.what();
    EXPECT_NE(std::string(error.what()).find(words), std::string::npos) << error.what();
  }
}

TEST(Prepare, EveryDocumentComesBack) {
  const Folder folder;
  write_corpus(folder, 30);
  folder.write("in/odd", std::string("\0\xff\xe2\x96\x81<s>\r\n \t", 13));
  PrepareOptions options = options_for(folder);
  options.keep_binary = true;
  const auto result = prepare(options);
  std::set<std::string> seen;
  for (const std::string split : {"train", "validation"}) {
    const auto dataset = TokenDataset::open(folder / "out", split);
    std::uint64_t bytes = 0;
    for (std::uint64_t d = 0; d < dataset.documents(); ++d) {
      const auto begins = dataset.document_begins();
      std::vector<std::uint32_t> tokens(begins[d + 1] - begins[d]);
      dataset.copy(begins[d], std::span(tokens));
      ASSERT_EQ(tokens.back(), dataset.tokenizer().end_of_document());
      const std::string text = dataset.tokenizer().decode(tokens);
      EXPECT_EQ(text, content(folder.path() + "/" + dataset.files()[d])) << dataset.files()[d];
      bytes += text.size();
      EXPECT_TRUE(seen.insert(dataset.files()[d]).second);
    }
    EXPECT_EQ(dataset.bytes(), bytes);
    EXPECT_EQ(dataset.bytes_of(0, dataset.tokens()), bytes);
  }
  EXPECT_EQ(seen.size(), 31u);
  EXPECT_GT(result.manifest.splits.at("train").shards.size(), 2u);
  EXPECT_GE(result.manifest.splits.at("validation").documents, 1u);
}

TEST(Prepare, SameBytesForAnyNumberOfThreadsAndPlace) {
  const Folder folder;
  const Folder elsewhere;
  write_corpus(folder, 30);
  write_corpus(elsewhere, 30);
  auto options = options_for(folder);
  prepare(options);
  auto other = options_for(elsewhere, "somewhere/deep/out");
  other.threads = 7;
  prepare(other);
  EXPECT_EQ(contents(options.out), contents(other.out));
}

TEST(Prepare, SaysWhenThereIsNothingToDo) {
  const Folder folder;
  write_corpus(folder, 10);
  EXPECT_FALSE(prepare(options_for(folder)).already_prepared);
  EXPECT_TRUE(prepare(options_for(folder)).already_prepared);
  // Other file times, same bytes.
  std::filesystem::last_write_time(
      folder / "in/d0/f0.h", std::filesystem::file_time_type::clock::now() + std::chrono::hours(1));
  EXPECT_TRUE(prepare(options_for(folder)).already_prepared);
}

/// The stages that are reported, each once and from its beginning, in their order.
std::vector<std::string> stages_of(const PrepareOptions& options) {
  std::vector<std::string> stages;
  std::map<std::string, bool> complete;
  std::uint64_t before = 0;
  prepare(options, [&](const std::string& stage, std::uint64_t done, std::uint64_t total) {
    if (stages.empty() || stages.back() != stage) {
      stages.push_back(stage);
      before = 0;
      EXPECT_EQ(done, 0u) << stage << " is told before its work";
    }
    EXPECT_LE(done, total) << stage;
    EXPECT_GE(done, before) << stage;
    before = done;
    complete[stage] = done == total;
  });
  for (const auto& [stage, whole] : complete) EXPECT_TRUE(whole) << stage << " did not end";
  return stages;
}

TEST(Prepare, ReportsItsStagesAndReadsNothingTwice) {
  using Stages = std::vector<std::string>;
  const Folder folder;
  write_corpus(folder, 10);
  EXPECT_EQ(stages_of(options_for(folder)),
            (Stages{"reading files", "removing duplicates", "training the tokenizer",
                    "tokenizing train", "tokenizing validation"}));
  EXPECT_FALSE(std::filesystem::exists(folder / "out/.progress"));
  EXPECT_EQ(stages_of(options_for(folder)), Stages{});
  // Other times make it look at the bytes, once.
  std::filesystem::last_write_time(
      folder / "in/d0/f0.h", std::filesystem::file_time_type::clock::now() + std::chrono::hours(1));
  EXPECT_EQ(stages_of(options_for(folder)), (Stages{"reading files", "removing duplicates"}));
  EXPECT_EQ(stages_of(options_for(folder)), Stages{});
}

TEST(Prepare, ADatasetInsideItsInputIsNoPartOfIt) {
  const Folder folder;
  write_corpus(folder, 10);
  auto options = options_for(folder, "in/out");
  const auto first = prepare(options);
  EXPECT_EQ(first.manifest.source.files, 10u);
  EXPECT_TRUE(prepare(options).already_prepared);
  std::filesystem::remove(folder / "in/out/manifest.json");
  EXPECT_EQ(prepare(options).manifest.source, first.manifest.source);
}

TEST(Prepare, CountsWhatIsLeftOut) {
  const Folder folder;
  const auto words = [](int first, int count) {
    std::string text;
    for (int i = 0; i < count; ++i) text += fmt::format("word{} ", first + i);
    return text + "\n";
  };
  const std::string passage = words(1000, 20);
  const std::string a = passage + "\n" + words(0, 200);
  folder.write("in/a", a);
  folder.write("in/b", a);
  folder.write("in/c", words(2000, 200) + "\n" + passage);
  folder.write("in/d", "");
  folder.write("in/e", passage);
  auto options = options_for(folder);
  options.tokenizer = TokenizerKind::kBytes;
  const Manifest manifest = prepare(options).manifest;
  const SourceCounts expected{
      .files = 5,
      .bytes = 2 * a.size() + words(2000, 200).size() + 1 + 2 * passage.size(),
      .empty_files = 2,
      .near_duplicate_files = 1,
      .near_duplicate_bytes = a.size(),
      .repeated_passages = 2,
      .repeated_passage_bytes = 2 * passage.size()};
  EXPECT_EQ(manifest.source, expected) << to_json(manifest);
  EXPECT_EQ(documents(manifest), 2u);
  options.drop_duplicates = false;
  options.out = folder / "all";
  const Manifest all = prepare(options).manifest;
  EXPECT_EQ(all.source.empty_files, 1u);
  EXPECT_EQ(all.source.near_duplicate_files + all.source.repeated_passages, 0u);
  EXPECT_EQ(documents(all), 4u);
}

TEST(Prepare, LeavesOutFilesThatAreNoText) {
  const Folder folder;
  write_corpus(folder, 10);
  std::string noise;
  for (int i = 0; i < 3000; ++i) noise += static_cast<char>(0x80 + i % 0x40);
  folder.write("in/nul.bin", std::string("text with\0 in it", 16));
  folder.write("in/noise.bin", noise);
  folder.write("in/later.txt", std::string(8 << 10, 'a') + std::string(5, '\0'));
  folder.write("in/latin.txt", "Ein sch\xf6nes Beispiel aus alter Zeit\n");
  folder.write("in/greek.txt", "\xce\xb1\xce\xb2\xce\xb3 \xe2\x82\xac \xf0\x9f\x90\x9f\n");
  auto options = options_for(folder);
  const PrepareResult result = prepare(options);
  ASSERT_EQ(result.binary_files.size(), 2u);
  EXPECT_EQ(result.binary_files[0].name, "in/noise.bin");
  EXPECT_EQ(result.binary_files[0].reason, "not UTF-8");
  EXPECT_EQ(result.binary_files[1].name, "in/nul.bin");
  EXPECT_EQ(result.binary_files[1].reason, "NUL bytes");
  const SourceCounts& source = result.manifest.source;
  EXPECT_EQ(source.files, 15u);
  EXPECT_EQ(source.binary_files, 2u);
  EXPECT_EQ(source.binary_bytes, 3016u);
  EXPECT_EQ(source.empty_files, 0u);
  EXPECT_EQ(documents(result.manifest), 13u);
  options.keep_binary = true;
  expect_error(ErrorKind::kUsage, "binary_files", [&] { prepare(options); });
  options.out = folder / "all";
  const PrepareResult all = prepare(options);
  EXPECT_TRUE(all.binary_files.empty());
  EXPECT_EQ(documents(all.manifest), 15u);
}

TEST(Prepare, SaysWhichFilesAreNoTextWhereNoOtherIsThere) {
  const Folder folder;
  folder.write("in/nul.bin", std::string(10, '\0'));
  expect_error(ErrorKind::kData, "1 of them look binary (the first is in/nul.bin: NUL bytes)",
               [&] { prepare(options_for(folder)); });
}

TEST(Prepare, EveryOptionIsPartOfTheDataset) {
  const Folder folder;
  write_corpus(folder, 10);
  prepare(options_for(folder));
  const auto refused = [&](const std::string& words,
                           const std::function<void(PrepareOptions&)>& change) {
    auto options = options_for(folder);
    change(options);
    expect_error(ErrorKind::kUsage, words, [&] { prepare(options); });
  };
  refused("seed is 0, not 1", [](auto& o) { o.seed = 1; });
  refused("validation_fraction is 0.2, not 0.3", [](auto& o) { o.validation_fraction = 0.3; });
  refused("drop_duplicates is true, not false", [](auto& o) { o.drop_duplicates = false; });
  refused("shard_tokens is 2000, not 2001", [](auto& o) { o.shard_tokens = 2001; });
  refused("tokenizer_bytes is 268435456, not 5", [](auto& o) { o.tokenizer_bytes = 5; });
  refused("tokenizer is bpe, not byte", [](auto& o) { o.tokenizer = TokenizerKind::kBytes; });
}

TEST(Prepare, OptionsOutsideTheirRangeAreRefused) {
  const Folder folder;
  write_corpus(folder, 3);
  const auto refused = [&](const std::function<void(PrepareOptions&)>& change) {
    auto options = options_for(folder);
    change(options);
    expect_error(ErrorKind::kUsage, "", [&] { prepare(options); });
    EXPECT_FALSE(std::filesystem::exists(folder / "out"));
  };
  refused([](auto& o) { o.out = ""; });
  refused([](auto& o) { o.headers = "include"; });
  refused([](auto& o) { o.inputs = {}; });
  refused([](auto& o) { o.validation_fraction = 1; });
  refused([](auto& o) { o.validation_fraction = -0.01; });
  refused([](auto& o) { o.vocab_size = 257; });
  refused([](auto& o) { o.vocab_size = 1'000'001; });
  refused([](auto& o) { o.shard_tokens = 0; });
  refused([](auto& o) { o.tokenizer_bytes = 0; });
  refused([](auto& o) { o.threads = 0; });
  const PrepareOptions defaults;
  EXPECT_EQ(defaults.validation_fraction, 0.05);
  EXPECT_TRUE(defaults.drop_duplicates);
  EXPECT_EQ(defaults.tokenizer, TokenizerKind::kBpe);
}

TEST(Prepare, SaysWhatWasPreparedOtherwise) {
  using Others = std::map<std::string, std::string>;
  const Folder folder;
  write_corpus(folder, 10);
  folder.write("in/bytes\xff.h", "no name in UTF-8");
  const auto options = options_for(folder);
  expect_error(ErrorKind::kInputMissing, "holds no dataset", [&] { prepared_otherwise(options); });
  const auto source = prepare(options).manifest.source;
  EXPECT_EQ(prepared_otherwise(options), Others{});
  auto other = options;
  other.vocab_size = 500;
  other.seed = 7;
  EXPECT_EQ(prepared_otherwise(other), (Others{{"vocab_size", "400"}, {"seed", "0"}}));
  other = options;
  other.tokenizer = TokenizerKind::kBytes;
  EXPECT_EQ(prepared_otherwise(other), (Others{{"tokenizer", "bpe"}}));
  const auto inputs = [&] { return prepared_otherwise(options)["inputs"]; };
  const std::string was = fmt::format("{} files of {} bytes, now ", source.files, source.bytes);
  folder.write("in/new.h", "12345");
  EXPECT_EQ(inputs(), was + fmt::format("12 of {} or of other names", source.bytes + 5));
  std::filesystem::remove(folder / "in/new.h");
  EXPECT_EQ(inputs(), "");
  std::filesystem::rename(folder / "in/d0/f0.h", folder / "in/d0/g0.h");
  EXPECT_EQ(inputs(), was + fmt::format("11 of {} or of other names", source.bytes));
  std::filesystem::rename(folder / "in/d0/g0.h", folder / "in/d0/f0.h");
  folder.write("in/d0/f0.h", content(folder / "in/d0/f0.h") + "x");
  EXPECT_EQ(inputs(), was + fmt::format("11 of {} or of other names", source.bytes + 1));
  // Where no inputs are named, they are not looked at.
  other = options;
  other.inputs = {};
  other.headers = "somewhere";
  EXPECT_EQ(prepared_otherwise(other), (Others{{"corpus", "files"}}));
}

TEST(Prepare, AShardIsClosedWhenItHasItsTokens) {
  const Folder folder;
  for (int i = 0; i < 6; ++i)
    folder.write(fmt::format("in/{}", i), std::string(9, static_cast<char>('a' + i)));
  auto options = options_for(folder);
  options.tokenizer = TokenizerKind::kBytes;
  options.validation_fraction = 0;
  for (const auto& [tokens, shards] : {std::pair{20, 3}, {21, 2}, {19, 3}, {10, 6}, {60, 1}}) {
    options.shard_tokens = static_cast<std::uint64_t>(tokens);
    options.out = folder / fmt::format("out{}", tokens);
    EXPECT_EQ(prepare(options).manifest.splits.at("train").shards.size(), shards) << tokens;
  }
}

TEST(Prepare, LeavesAnotherDatasetAlone) {
  const Folder folder;
  write_corpus(folder, 10);
  prepare(options_for(folder));
  const auto before = contents(folder / "out");
  auto options = options_for(folder);
  options.vocab_size = 500;
  expect_error(ErrorKind::kUsage, "vocab_size is 400, not 500", [&] { prepare(options); });
  folder.write("in/new.h", "int new_file;\n");
  expect_error(ErrorKind::kUsage, "input files", [&] { prepare(options_for(folder)); });
  EXPECT_EQ(contents(folder / "out"), before);
}

// What the ranks of a job do that another launcher has started.
TEST(Prepare, OfManyAtOnceOneWorksAndTheOthersWait) {
  const Folder folder;
  write_corpus(folder, 10);
  auto options = options_for(folder);
  {
    std::filesystem::create_directories(folder / "out");
    const FileLock held(folder / "out/.lock");
    expect_error(ErrorKind::kOutput, "another process is at work", [&] { prepare(options); });
    options.patience = std::chrono::milliseconds(200);
    expect_error(ErrorKind::kOutput, "another process is at work", [&] { prepare(options); });
  }
  options.patience = std::chrono::minutes(1);
  std::atomic<int> workers = 0;
  std::atomic<int> waiters = 0;
  std::vector<std::thread> ranks;
  for (int rank = 0; rank < 4; ++rank)
    ranks.emplace_back([&] { ++(prepare(options).already_prepared ? waiters : workers); });
  for (auto& rank : ranks) rank.join();
  EXPECT_EQ(workers, 1);
  EXPECT_EQ(waiters, 3);
}

TEST(Prepare, MakesALostShardAgain) {
  const Folder folder;
  write_corpus(folder, 30);
  prepare(options_for(folder));
  const auto before = contents(folder / "out");
  std::filesystem::remove(folder / "out/train-00001.tokens");
  const auto again = prepare(options_for(folder));
  EXPECT_FALSE(again.already_prepared);
  EXPECT_EQ(again.shards_reused, 1 + again.manifest.splits.at("validation").shards.size());
  EXPECT_EQ(contents(folder / "out"), before);
  std::filesystem::remove(folder / "out/tokenizer.model");
  EXPECT_FALSE(prepare(options_for(folder)).already_prepared);
  EXPECT_EQ(contents(folder / "out"), before);
  // As the error of a damaged shard advises.
  folder.write("out/train-00000.tokens", "broken");
  std::filesystem::remove(folder / "out/manifest.json");
  prepare(options_for(folder));
  EXPECT_EQ(contents(folder / "out"), before);
}

TEST(Prepare, AChangeOfInputsAfterAnInterruptionIsNoticed) {
  const Folder folder;
  write_corpus(folder, 30);
  prepare(options_for(folder));
  std::filesystem::remove(folder / "out/manifest.json");
  folder.write("in/new.h", "int new_file;\n");
  prepare(options_for(folder));
  prepare(options_for(folder, "fresh"));
  EXPECT_EQ(contents(folder / "out"), contents(folder / "fresh"));
}

TEST(Prepare, ShardsThatTheInterruptedRunHadMoreOfGo) {
  const Folder folder;
  write_corpus(folder, 30);
  prepare(options_for(folder));
  std::filesystem::remove(folder / "out/manifest.json");
  auto options = options_for(folder);
  options.shard_tokens = 1 << 20;
  EXPECT_EQ(prepare(options).shards_reused, 0u);
  options.out = folder / "fresh";
  prepare(options);
  EXPECT_EQ(contents(folder / "out"), contents(folder / "fresh"));
}

// Sixty documents of a pair of letters each, which becomes a token where the training sees it. Of
// sixty draws of a quarter 15 are expected, with a deviation of sqrt(45 / 4); five of them.
TEST(Prepare, TheTokenizerSeesAShareOfTheDocuments) {
  const Folder folder;
  const auto pair = [](int i) {
    return std::string{static_cast<char>('a' + i % 8), static_cast<char>('A' + i / 8)};
  };
  std::uint64_t bytes = 0;
  for (int i = 0; i < 60; ++i) {
    std::string text;
    for (int k = 0; k < 50; ++k) text += pair(i) + "\n";
    folder.write(fmt::format("in/{}", i), text);
    bytes += text.size();
  }
  auto options = options_for(folder);
  options.vocab_size = 1000;
  options.drop_duplicates = false;
  options.validation_fraction = 0;
  const auto learnt = [&](std::uint64_t seen) {
    options.tokenizer_bytes = seen;
    options.out = folder / fmt::format("out{}", seen);
    prepare(options);
    const auto tokenizer = load_tokenizer(options.out + "/tokenizer.model");
    int count = 0;
    for (int i = 0; i < 60; ++i) count += tokenizer->encode(pair(i)).size() == 1;
    return count;
  };
  EXPECT_EQ(learnt(bytes), 60);
  EXPECT_NEAR(learnt(bytes / 4), 15, 5 * std::sqrt(45.0 / 4));
  // One document is seen whole, however long.
  options.inputs = {folder / "in/7"};
  options.tokenizer_bytes = 1;
  options.out = folder / "one";
  prepare(options);
  EXPECT_EQ(load_tokenizer(folder / "one/tokenizer.model")->encode(pair(7)).size(), 1u);
}

TEST(Prepare, OneFileIsCutAtALineEnd) {
  const Folder folder;
  std::string text;
  for (int i = 0; i < 1000; ++i) text += fmt::format("line {}\n", i);
  folder.write("in/all.txt", text);
  prepare(options_for(folder));
  std::string joined;
  for (const std::string split : {"train", "validation"}) {
    const auto dataset = TokenDataset::open(folder / "out", split);
    std::vector<std::uint32_t> tokens(dataset.tokens());
    dataset.copy(0, std::span(tokens));
    joined += dataset.tokenizer().decode(tokens);
    EXPECT_EQ(joined.back(), '\n');
  }
  EXPECT_EQ(joined, text);
}

TEST(Prepare, RefusesWhatCannotBe) {
  const Folder folder;
  auto options = options_for(folder);
  expect_error(ErrorKind::kInputMissing, "no file or folder", [&] { prepare(options); });
  std::filesystem::create_directories(folder / "in");
  expect_error(ErrorKind::kData, "no file", [&] { prepare(options); });
  folder.write("in/empty.h", "");
  expect_error(ErrorKind::kData, "corpus is empty", [&] { prepare(options); });
  write_corpus(folder, 3);
  options.suffixes = {".nothing"};
  expect_error(ErrorKind::kData, "no file", [&] { prepare(options); });
  options.suffixes = {};
  options.vocab_size = 100;
  expect_error(ErrorKind::kUsage, "258", [&] { prepare(options); });
  options.vocab_size = 300;
  options.inputs.push_back(folder / "in/d0");
  EXPECT_NO_THROW(prepare(options)) << "names differ by their folder";
  options.inputs.push_back(folder / "in");
  options.out = folder / "twice";
  expect_error(ErrorKind::kData, "would both be called", [&] { prepare(options); });
  options = options_for(folder);
  options.out = folder.write("a_file", "x");
  expect_error(ErrorKind::kOutput, "cannot make the folder", [&] { prepare(options); });
  options = options_for(folder);
  options.headers = folder / "no_torch";
  options.inputs = {};
  expect_error(ErrorKind::kInputMissing, "no_torch", [&] { prepare(options); });
  options.headers = folder / "in";
  expect_error(ErrorKind::kInputMissing, "pinned list", [&] { prepare(options); });
}

TEST(Prepare, TheVocabularyDecidesTheWidthOfATokenInAFile) {
  const Folder folder;
  write_corpus(folder, 6);
  auto options = options_for(folder);
  options.tokenizer = TokenizerKind::kBytes;
  const auto manifest = prepare(options).manifest;
  EXPECT_EQ(manifest.vocab_size, 257u);
  EXPECT_EQ(TokenShard(folder / "out/train-00000.tokens", true).header().token_bytes, 2u);
}

// The tokenizer of an interrupted run is kept: here one that was given as many entries as are
// wanted.
TEST(Prepare, ATokenTakesTwoBytesUpTo65536Entries) {
  const Folder folder;
  write_corpus(folder, 6);
  const auto options = options_for(folder);
  const auto manifest = prepare(options).manifest;
  const std::string model = content(folder / "out/tokenizer.model");
  for (const std::uint32_t entries : {65536u, 65537u}) {
    folder.write("out/tokenizer.model", model + made_up_entries(entries - manifest.vocab_size));
    folder.write("out/.progress", fmt::format("{:016x}\n", manifest.fingerprint));
    std::filesystem::remove(folder / "out/manifest.json");
    const auto result = prepare(options);
    EXPECT_EQ(result.manifest.vocab_size, entries);
    EXPECT_EQ(result.shards_reused, 0u) << "they are of another tokenizer";
    EXPECT_EQ(TokenShard(folder / "out/train-00000.tokens", true).header().token_bytes,
              entries == 65536 ? 2u : 4u);
    const auto dataset = TokenDataset::open(folder / "out", "train");
    std::vector<std::uint32_t> tokens(dataset.document_begins()[1]);
    dataset.copy(0, std::span(tokens));
    EXPECT_EQ(dataset.tokenizer().decode(tokens),
              content(folder.path() + "/" + dataset.files()[0]));
  }
}

/// Runs the program, kills it after `wait`; true when it was killed before it ended.
bool run_and_kill(const std::vector<std::string>& arguments, std::chrono::microseconds wait) {
  const pid_t child = ::fork();
  if (child == 0) {
    std::vector<char*> argv;
    for (const auto& argument : arguments) argv.push_back(const_cast<char*>(argument.c_str()));
    argv.push_back(nullptr);
    if (!::freopen("/dev/null", "w", stdout) || !::freopen("/dev/null", "w", stderr)) ::_exit(126);
    ::execv(argv[0], argv.data());
    ::_exit(127);
  }
  std::this_thread::sleep_for(wait);
  ::kill(child, SIGKILL);
  int status = 0;
  ::waitpid(child, &status, 0);
  EXPECT_TRUE(WIFSIGNALED(status) || WEXITSTATUS(status) == 0);
  return WIFSIGNALED(status);
}

TEST(Prepare, KilledAnywhereItGoesOnToTheSameBytes) {
  const Folder folder;
  write_corpus(folder, 200, 150);
  auto options = options_for(folder, "whole");
  options.shard_tokens = 5000;
  options.validation_fraction = 0.05;
  prepare(options);
  const std::vector<std::string> command = {
      SHOAL_DATA_COMMAND, "data",    "prepare", "--input",        folder / "in", "--out",
      folder / "out",     "--vocab", "400",     "--shard-tokens", "5000"};
  // Longer and longer until it ends by itself: the kills fall into every stage.
  int kills = 0;
  for (auto wait = std::chrono::microseconds(2000); run_and_kill(command, wait);
       wait = wait * 5 / 4)
    ++kills;
  EXPECT_GE(kills, 3);
  EXPECT_EQ(contents(folder / "out"), contents(folder / "whole"));
}

}  // namespace
}  // namespace shoal::data::prepare_test
