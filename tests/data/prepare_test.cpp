#include "shoal/data/prepare.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>

#include <atomic>
#include <chrono>
#include <filesystem>
#include <random>
#include <set>
#include <thread>

#include "shoal/base/error.h"
#include "shoal/data/dataset.h"
#include "shoal/data/file.h"
#include "tests/data/folder.h"

namespace shoal::data {
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
  const auto result = prepare(options_for(folder));
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
  prepare(options_for(folder));
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
}  // namespace shoal::data
