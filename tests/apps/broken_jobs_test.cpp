#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <span>
#include <sstream>

#include "shoal/train/config/keys.h"
#include "tests/apps/program.h"
#include "tests/sanitized.h"

namespace shoal::apps::testing::broken_jobs_test {
namespace {

using ::testing::AnyOf;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

/// The default job of these tests; [name, lines].
using Sections = std::vector<std::pair<std::string, std::vector<std::string>>>;

Sections default_job() {
  return {{"job", {"name = \"default\""}},
          {"model", {"name = \"gpt2-tiny\"", "vocab = 0"}},
          {"data", {"folders = [\"corpus\"]"}},
          {"training",
           {"global_batch_sequences = 8", "micro_batch = 2", "sequence_length = 32", "steps = 4"}},
          {"optimizer", {"name = \"adamw\"", "learning_rate = 0.001"}},
          {"lr_scheduler", {"name = \"cosine\"", "warmup_steps = 1"}},
          {"parallelism", {"ranks = 2"}},
          {"validation", {"batches = 1"}}};
}

// With sanitizers each start of the program takes ten times as long, and the keys of a section are
// refused by the same code: every fifth is tried, and the first of each section.
constexpr int kTriedOf = kSanitized ? 5 : 1;

std::vector<train::ConfigKey> tried_keys() {
  std::vector<train::ConfigKey> tried;
  const std::span<const train::ConfigKey> all = train::all_keys();
  for (std::size_t i = 0; i < all.size(); ++i)
    if (i % kTriedOf == 0 || all[i].section != all[i - 1].section) tried.push_back(all[i]);
  return tried;
}

std::string key_of(const std::string& line) { return line.substr(0, line.find_first_of(" =")); }

/// Puts `line` in the place of the line with the same key, or at the end of its section, which is
/// added when there is none.
void put(Sections& sections, const std::string& section, const std::string& line) {
  for (auto& [name, lines] : sections) {
    if (name != section) continue;
    for (std::string& old : lines)
      if (key_of(old) == key_of(line)) return void(old = line);
    return lines.push_back(line);
  }
  sections.push_back({section, {line}});
}

void drop(Sections& sections, const std::string& section, const std::string& key) {
  for (auto& [name, lines] : sections) {
    if (name == section)
      std::erase_if(lines, [&](const std::string& line) { return key_of(line) == key; });
  }
}

std::string text_of(const Sections& sections) {
  std::string text;
  for (const auto& [name, lines] : sections) {
    text += "[" + name + "]\n";
    for (const std::string& line : lines) text += line + "\n";
  }
  return text;
}

/// "job.toml:7" of the line that reads `line` in `section`.
std::string place_of(const std::string& text, const std::string& section,
                     const std::string& wanted) {
  std::istringstream lines(text);
  int number = 0;
  bool inside = false;
  for (std::string line; std::getline(lines, line);) {
    ++number;
    if (line.front() == '[') inside = line == "[" + section + "]";
    if (inside && line == wanted) return "job.toml:" + std::to_string(number);
  }
  return "no such line: " + wanted;
}

/// What is in a folder: paths, contents and times of writing.
std::string inventory(const std::filesystem::path& folder) {
  std::vector<std::string> entries;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(folder)) {
    std::string text = entry.path().string() + " " +
                       std::to_string(entry.last_write_time().time_since_epoch().count());
    if (entry.is_regular_file()) {
      std::ifstream file(entry.path());
      std::ostringstream content;
      content << file.rdbuf();
      text += content.str();
    }
    entries.push_back(text);
  }
  std::sort(entries.begin(), entries.end());
  std::string all;
  for (const auto& entry : entries) all += entry + "\n";
  return all;
}

/// A folder with a token data set and a finished run, which no broken job may touch.
class BrokenJobs : public ::testing::Test {
 protected:
  void SetUp() override {
    for (int i = 0; i < 20; ++i) {
      std::string text;
      for (int line = 0; line < 200; ++line)
        text += "document " + std::to_string(i) + " line " + std::to_string(line * i) + "\n";
      folder.write("text/" + std::to_string(i) + ".txt", text);
    }
    prepare("corpus", "text");
    folder.write("runs/default/metrics.jsonl", "{\"step\": 1}\n");
    folder.write("runs/default/config.toml", "# precious\n");
    folder.write("runs/default/checkpoints/step-4/model.safetensors", "precious");
    before = inventory(folder.path() / "runs");
  }
  void prepare(const std::string& out, const std::string& in) {
    const Outcome outcome =
        run({shoal_program(), "data", "prepare", "-o", out, "-i", in, "--tokenizer", "byte",
             "--validation-fraction", "0.3", "--keep-duplicates"},
            folder.path());
    ASSERT_EQ(outcome.code, 0) << outcome.err;
  }
  Outcome train(const Sections& job, const std::vector<std::string>& more = {}) {
    folder.write("job.toml", text_of(job));
    std::vector<std::string> words = {shoal_program(), "train", "job.toml"};
    words.insert(words.end(), more.begin(), more.end());
    return run(words, folder.path());
  }
  /// Refused with `code`, in one line for people that says each of `says`; nothing is touched and
  /// no rank has started.
  void expect_refused(const Sections& job, int code, const std::vector<std::string>& says,
                      const std::vector<std::string>& more = {}) {
    SCOPED_TRACE(text_of(job));
    const Outcome outcome = train(job, more);
    EXPECT_EQ(outcome.code, code) << outcome.err;
    ASSERT_THAT(outcome.err, HasSubstr("shoal: "));
    EXPECT_THAT(outcome.err.substr(outcome.err.find("shoal: ")), StartsWith("shoal: ["))
        << "progress of a preparation may stand before it";
    EXPECT_EQ(
        std::count(outcome.err.begin() + outcome.err.find("shoal: "), outcome.err.end(), '\n'), 1)
        << outcome.err;
    EXPECT_THAT(outcome.err, Not(AnyOf(HasSubstr("frame #"), HasSubstr("terminate"),
                                       HasSubstr("Exception raised"))));
    for (const std::string& part : says) EXPECT_THAT(outcome.err, HasSubstr(part));
    EXPECT_THAT(outcome.out, Not(HasSubstr("hello")));
    EXPECT_EQ(inventory(folder.path() / "runs"), before);
    ++refused;
  }
  /// One line changed or added.
  void expect_line_refused(const std::string& section, const std::string& line,
                           const std::vector<std::string>& says) {
    Sections job = default_job();
    put(job, section, line);
    std::vector<std::string> all = {place_of(text_of(job), section, line),
                                    section + "." + key_of(line)};
    all.insert(all.end(), says.begin(), says.end());
    expect_refused(job, 78, all);
  }

  /// A file of the data set cut to a part of its length, and whole again.
  void damage(const std::string& file, double part) {
    const std::string name = "corpus/" + file;
    const std::string whole = folder.read(name);
    folder.write(name, whole.substr(0, static_cast<std::size_t>(part * whole.size())));
    expect_refused(default_job(), 65, {"corpus"});
    std::filesystem::remove(folder.path() / name);
    expect_refused(default_job(), 66, {"corpus"});
    folder.write(name, whole);
  }

  Folder folder;
  std::string before;
  int refused = 0;
};

TEST_F(BrokenJobs, TheDefaultItselfIsFine) {
  const Outcome outcome = train(default_job());
  EXPECT_EQ(outcome.code, 0) << outcome.err;
}

TEST_F(BrokenJobs, EveryKeyMisspelt) {
  for (const train::ConfigKey& key : tried_keys()) {
    if (key.name.size() < 4) continue;
    std::string misspelt = key.name;
    std::swap(misspelt[1], misspelt[2]);
    if (misspelt == key.name) std::swap(misspelt[2], misspelt[3]);
    expect_line_refused(
        key.section, misspelt + " = 1",
        {"no such key; [" + key.section + "] has ", "Hint: did you mean \"" + key.name + "\"?"});
  }
  EXPECT_GE(refused, 60 / kTriedOf);
}

TEST_F(BrokenJobs, EveryKeyOfAnotherType) {
  for (const train::ConfigKey& key : tried_keys()) {
    train::JobConfig defaults;
    const auto place = key.place(defaults);
    const bool text = std::holds_alternative<std::string*>(place) ||
                      std::holds_alternative<std::optional<std::string>*>(place) ||
                      std::holds_alternative<train::ChoicePlace>(place);
    expect_line_refused(key.section, key.name + (text ? " = 17" : " = \"many\""), {"must be "});
  }
  EXPECT_GE(refused, 70 / kTriedOf);
}

TEST_F(BrokenJobs, EveryRangeLeft) {
  for (const train::ConfigKey& key : tried_keys()) {
    if (key.allowed.least == -std::numeric_limits<double>::infinity()) continue;
    train::JobConfig defaults;
    const auto place = key.place(defaults);
    const bool whole = std::holds_alternative<std::int64_t*>(place) ||
                       std::holds_alternative<std::optional<std::int64_t>*>(place) ||
                       std::holds_alternative<std::optional<std::vector<std::int64_t>>*>(place);
    const bool list = std::holds_alternative<std::vector<double>*>(place) ||
                      std::holds_alternative<std::optional<std::vector<std::int64_t>>*>(place);
    const std::string value = whole
                                  ? std::to_string(static_cast<std::int64_t>(key.allowed.least) - 1)
                                  : std::to_string(key.allowed.least - 0.5);
    expect_line_refused(key.section, key.name + " = " + (list ? "[" + value + "]" : value),
                        {"must be ", train::describe_allowed(key)});
  }
  for (const train::ConfigKey& key : tried_keys()) {
    if (!key.allowed.words.empty()) {
      expect_line_refused(key.section, key.name + " = \"nonsense\"",
                          {"must be one of \"" + key.allowed.words.front() + "\""});
    }
  }
}

struct Line {
  const char* section;
  const char* line;
  const char* says;
};

TEST_F(BrokenJobs, ImpossibleCombinations) {
  // One changed line each; the message names the line.
  const Line lines[] = {
      {"parallelism", "ranks = 0", "must be a whole number from 1"},
      {"job", "name = \"../escape\"", "letters, digits"},
      {"job", "name = \"\"", "letters, digits"},
      {"job", "name = \".hidden\"", "letters, digits"},
      {"model", "name = \"gpt2-tny\"", "did you mean \"gpt2-tiny\"?"},
      {"model", "experts = 4", "experts_per_token = 0: must lie between 1 and experts = 4"},
      {"model", "capacity_factor = 1.0", "a dense model has no experts"},
      {"model", "family = \"transformer\"", "follows from model.name"},
      {"model", "heads = 3", "must divide hidden = 128"},
      {"model", "hidden = 130", "heads = 4: must divide hidden = 130"},
      {"model", "kv_heads = 3", "must divide heads = 4"},
      {"model", "widths = [3]", "belongs to a multi-layer perceptron"},
      {"model", "dropout = 1.5", "from 0 to below 1"},
      {"data", "folders = []", "name at least one folder"},
      {"data", "weights = [1.0, 2.0]", "one weight for each of the 1 folders"},
      {"data", "prepare = \"files\"", ""},
      {"data", "prepare_from = [\"text\"]", "prepare = \"files\""},
      {"data", "tokenizer = \"byte\"", "data.prepare is \"nothing\""},
      {"data", "vocab_size = 512", "data.prepare is \"nothing\""},
      {"data", "samples = 100", "belongs to tables"},
      {"data", "source = \"digits\"", ""},
      {"data", "file = \"x.csv\"", "belongs to tables"},
      {"training", "global_batch_tokens = 256", "set one of both"},
      {"training", "micro_batch = 3", "must divide a rank's share"},
      {"training", "global_batch_sequences = 9", "do not divide among 2 ranks"},
      {"training", "tokens = 1024", "exactly one"},
      {"training", "epochs = 1", "exactly one"},
      {"training", "sequence_length = 4096", "longer than the model's longest sequence, 256"},
      {"training", "loss = \"mean_squared_error\"", "this data has classes"},
      {"optimizer", "momentum = 0.9", "belongs to sgd"},
      {"optimizer", "nesterov = true", "belongs to sgd"},
      {"lr_scheduler", "warmup_steps = 5", "longer than the run: training.steps = 4"},
      {"lr_scheduler", "decay_fraction = 0.5", "belongs to wsd"},
      {"parallelism", "interface = \"lo\"", "belongs to TCP"},
      {"parallelism", "bucket_mb = 5.0", "gradients are reduced where they lie"},
      {"model", "rope_theta = 500.0", "belongs to rotary positions"},
      {"validation", "sample_prompt = \"x\"", "validation.sample_tokens is 0"},
      {"debug", "fault_step = 3", "debug.fault is \"none\""},
      {"debug", "fault_rank = 1", "debug.fault is \"none\""},
      {"debug", "fault = \"kill\"", ""},
  };
  for (const Line& line : lines) {
    const std::string text = line.line;
    Sections job = default_job();
    put(job, line.section, text);
    // Where two keys contradict each other the other one may be named.
    if (*line.says == '\0') {
      expect_refused(job, 78, {"job.toml"});
    } else {
      expect_line_refused(line.section, text, {line.says});
    }
  }
}

TEST_F(BrokenJobs, MissingKeysAndBrokenFiles) {
  Sections job = default_job();
  put(job, "debug", "fault = \"kill\""), put(job, "debug", "fault_step = 5");
  expect_refused(job, 78, {"debug.fault_step = 5", "would never come: training.steps = 4"});
  job = default_job();
  drop(job, "training", "steps");
  expect_refused(job, 78,
                 {"job.toml: training.steps (not set)", "set one of steps, tokens and epochs"});
  job = default_job();
  drop(job, "training", "global_batch_sequences");
  expect_refused(
      job, 78,
      {"job.toml: training.global_batch_sequences (not set)", "training.global_batch_tokens"});
  job = default_job();
  drop(job, "model", "name");
  expect_refused(job, 78, {"model.name"});
  put(job, "model", "family = \"transformer\"");
  expect_refused(job, 78, {"model.layers = 0"});
  job = default_job();
  put(job, "training", "global_batch_tokens = 100");
  drop(job, "training", "global_batch_sequences");
  expect_refused(
      job, 78,
      {"training.global_batch_tokens = 100: must be a multiple of training.sequence_length = 32"});
  job = default_job();
  job.push_back({"optimiser", {}});
  expect_refused(job, 78, {"[optimiser]: no such section", "did you mean [optimizer]?"});
  job = default_job();
  job.push_back({"training", {"steps = 3"}});
  expect_refused(job, 78, {"job.toml:", "not TOML"});
  job = default_job();
  put(job, "training", "steps = = 4");
  expect_refused(job, 78, {place_of(text_of(job), "training", "steps = = 4"), "not TOML"});
  expect_refused({{"job", {"name = \"\xff\xfe\""}}}, 78, {"job.toml:2", "not TOML"});
  expect_refused({}, 78, {"job.toml", "data.folders"});
}

TEST_F(BrokenJobs, BrokenCommandLines) {
  const Sections job = default_job();
  expect_refused(job, 78, {"command line: parallelism.ranks = 0: must be a whole number from 1"},
                 {"--set", "parallelism.ranks=0"});
  expect_refused(job, 78, {"command line: training.stesp: no such key", "did you mean \"steps\"?"},
                 {"--set", "training.stesp=3"});
  expect_refused(job, 78, {"command line: training.micro_batch = 3"},
                 {"--set", "training.micro_batch=3", "--fresh"});
  expect_refused(job, 78, {"do not divide among 3 ranks"}, {"--nproc", "3", "--fresh"});
  expect_refused(job, 78, {"command line: parallelism.transport = \"tcp\": ranks of one process"},
                 {"--in-process", "--set", "parallelism.transport=tcp", "--fresh"});
  expect_refused(job, 78,
                 {"command line: optimizer.beta1 = 1.0: must be a number from 0 to below 1"},
                 {"--set", "optimizer.beta1=1.0"});
  expect_refused(job, 2, {"--set steps: must read section.key=value"}, {"--set", "steps"});
  expect_refused(job, 2, {"--set steps=3: must read section.key=value"}, {"--set", "steps=3"});
  for (const std::vector<std::string>& more :
       std::vector<std::vector<std::string>>{{"--nproc", "0"}, {"--nproc", "x"}, {"--nonsense"}})
    EXPECT_EQ(train(job, more).code, 2) << more.front();
  EXPECT_EQ(run({shoal_program(), "train", "absent.toml"}, folder.path()).code, 66);
  EXPECT_EQ(run({shoal_program(), "train", "corpus"}, folder.path()).code, 66)
      << "a folder is no job file";
  EXPECT_EQ(run({shoal_program(), "train"}, folder.path()).code, 2);
  EXPECT_EQ(inventory(folder.path() / "runs"), before);
}

TEST_F(BrokenJobs, BrokenData) {
  Sections job = default_job();
  put(job, "data", "folders = [\"absent\"]");
  expect_refused(job, 66, {"absent"});
  put(job, "data", "folders = [\"corpus\", \"absent\"]");
  expect_refused(job, 66, {"absent"});
  put(job, "data", "folders = [\"text\"]");
  expect_refused(job, 66, {"text"}, {"--fresh"});

  folder.write("nothing/empty.txt", "");
  job = default_job();
  put(job, "data", "folders = [\"made\"]");
  put(job, "data", "prepare = \"files\"");
  put(job, "data", "prepare_from = [\"nothing\"]");
  expect_refused(job, 65, {"the corpus is empty"});
  put(job, "data", "prepare_from = [\"gone\"]");
  expect_refused(job, 66, {"gone"});

  job = default_job();
  put(job, "model", "vocab = 256");
  expect_refused(job, 78,
                 {place_of(text_of(job), "model", "vocab = 256"), "the tokenizer 257 entries"});

  for (const char* file : {"manifest.json", "tokenizer.model"}) damage(file, 0.5);
  std::vector<std::string> shards;
  for (const auto& entry : std::filesystem::directory_iterator(folder.path() / "corpus")) {
    if (entry.path().filename().string().find("train") != std::string::npos)
      shards.push_back(entry.path().filename());
  }
  ASSERT_FALSE(shards.empty());
  for (const std::string& shard : shards) damage(shard, 0.5), damage(shard, 0.0);
}

// A finished run stands in the way of --fresh: it is there still, in its place, when the data turns
// out to be wrong.
TEST_F(BrokenJobs, WhatOnlyTheDataTellsIsFoundBeforeAnythingMoves) {
  const std::vector<std::string> fresh = {"--fresh"};
  std::string table = "a,b,kind\n";
  for (int i = 0; i < 60; ++i)
    table += std::to_string(i) + "," + std::to_string(i % 5) + "," + std::to_string(i % 3) + "\n";
  folder.write("table.csv", table);
  folder.write("tiny.csv", "a,b,kind\n1,2,0\n");
  Sections csv = {{"job", {"name = \"default\""}},
                  {"model", {"family = \"mlp\"", "widths = [4]"}},
                  {"data", {"source = \"csv\"", "file = \"table.csv\""}},
                  {"training", {"global_batch_sequences = 8", "epochs = 2"}},
                  {"parallelism", {"ranks = 2"}}};
  const auto changed = [&](const std::string& section, const std::string& line) {
    Sections job = csv;
    put(job, section, line);
    return job;
  };
  expect_refused(changed("model", "outputs = 4"), 78,
                 {"model.outputs = 4: the data has 3 classes or targets"}, fresh);
  expect_refused(changed("model", "inputs = 3"), 78, {"model.inputs = 3: the data has 2 features"},
                 fresh);
  expect_refused(changed("training", "global_batch_sequences = 128"), 78,
                 {"training.epochs = 2.0: less than one step"}, fresh);
  expect_refused(changed("training", "epochs = 0.01"), 78,
                 {"training.epochs = 0.01: less than one step"}, fresh);
  put(csv, "lr_scheduler", "warmup_steps = 100");
  expect_refused(csv, 78,
                 {"lr_scheduler.warmup_steps = 100: longer than the run: training.epochs = 2 are "},
                 fresh);
  drop(csv, "lr_scheduler", "warmup_steps");
  expect_refused(changed("data", "file = \"absent.csv\""), 66, {"absent.csv"}, fresh);
  expect_refused(changed("data", "target = \"species\""), 65, {"table.csv", "species"}, fresh);
  expect_refused(changed("data", "target = \"9\""), 65, {"table.csv"}, fresh);
  expect_refused(changed("data", "file = \"tiny.csv\""), 65, {"leave one part empty"}, fresh);

  Sections tokens = default_job();
  drop(tokens, "training", "steps");
  put(tokens, "training", "epochs = 0.0001");
  expect_refused(tokens, 78, {"training.epochs = 0.0001: less than one step"}, fresh);
  std::vector<std::string> shards;
  for (const auto& entry : std::filesystem::directory_iterator(folder.path() / "corpus")) {
    if (entry.path().filename().string().find("validation-") == 0)
      shards.push_back(entry.path().filename());
  }
  ASSERT_FALSE(shards.empty());
  for (const std::string& shard : shards) {
    damage(shard, 0.5);
    const std::string name = "corpus/" + shard;
    const std::string whole = folder.read(name);
    std::string flipped = whole;
    flipped[20] ^= 0x55;
    folder.write(name, flipped);
    expect_refused(default_job(), 65, {shard, "the checksum of its header is wrong"}, fresh);
    folder.write(name, whole);
  }
  const Outcome outcome =
      run({shoal_program(), "data", "prepare", "-o", "all", "-i", "text", "--tokenizer", "byte",
           "--validation-fraction", "0", "--keep-duplicates"},
          folder.path());
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  tokens = default_job();
  put(tokens, "data", "folders = [\"all\"]");
  expect_refused(tokens, 65, {"the split 'validation' of all is empty"}, fresh);
}

TEST_F(BrokenJobs, AFolderThatWasPreparedOtherwise) {
  Sections job = default_job();
  put(job, "data", "prepare = \"files\"");
  put(job, "data", "prepare_from = [\"text\"]");
  put(job, "data", "tokenizer = \"byte\"");
  const auto refused = [&](const std::string& line, const std::string& says) {
    Sections changed = job;
    put(changed, "data", line);
    expect_refused(changed, 78, {place_of(text_of(changed), "data", line), says}, {"--fresh"});
  };
  refused("tokenizer = \"bpe\"",
          "data.tokenizer = \"bpe\": corpus holds a data set that was prepared otherwise: "
          "data.tokenizer was byte");
  folder.write("other/0.txt", "other text");
  refused("prepare_from = [\"other\"]", "data.prepare_from was 20 files of ");
  Sections headers = job;
  put(headers, "data", "prepare = \"headers\"");
  drop(headers, "data", "prepare_from");
  expect_refused(headers, 78,
                 {"data.prepare = \"headers\": corpus holds a data set that was prepared "
                  "otherwise: data.prepare was files"});

  const Outcome made = run({shoal_program(), "data", "prepare", "-o", "bpe", "-i", "text",
                            "--vocab", "300", "--keep-duplicates"},
                           folder.path());
  ASSERT_EQ(made.code, 0) << made.err;
  put(job, "data", "folders = [\"bpe\"]");
  put(job, "data", "tokenizer = \"bpe\"");
  refused("vocab_size = 400", "data.vocab_size was 300");
  put(job, "data", "vocab_size = 300");
  // Last, as it makes a run: options that only the command has may be other ones, and the same data
  // is taken as it is.
  const Outcome same = train(job);
  EXPECT_EQ(same.code, 0) << same.err;
}

TEST_F(BrokenJobs, CommandsOfDataSets) {
  const auto code = [&](std::vector<std::string> words) {
    words.insert(words.begin(), shoal_program());
    Program program(words, folder.path());
    return program.wait().code;
  };
  EXPECT_EQ(code({"data", "peek", "corpus", "-n", "1"}), 0);
  EXPECT_EQ(code({"data", "peek", "corpus", "-n", "-1"}), 2);
  EXPECT_EQ(code({"data", "peek", "corpus", "--seed", "-1"}), 2);
  EXPECT_EQ(code({"data", "peek", "corpus", "--split", "nosplit"}), 2);
  EXPECT_EQ(code({"data", "prepare", "-o", "seeded", "-i", "text", "--seed", "-1"}), 2);
  EXPECT_EQ(code({"generate", "--checkpoint", "x", "--prompt", "x", "--seed", "-1"}), 2);
}

TEST_F(BrokenJobs, WhatCannotBePrintedIsAnError) {
  const std::vector<std::string> commands[] = {{"data", "stats", "corpus", "--orders", "1"},
                                               {"data", "peek", "corpus", "-n", "300"},
                                               {"plan", "--model", "gpt2-tiny"},
                                               {"train", "--help-config"},
                                               {"--help"}};
  for (const auto& command : commands) {
    std::string line = shoal_program();
    for (const std::string& word : command) line += " " + word;
    const Outcome outcome = run({"/bin/sh", "-c", line + " > /dev/full"}, folder.path());
    EXPECT_EQ(outcome.code, 74) << line << "\n" << outcome.err;
    EXPECT_THAT(
        outcome.err,
        HasSubstr("shoal: [output] cannot write to standard output: No space left on device"))
        << line;
  }
}

}  // namespace
}  // namespace shoal::apps::testing::broken_jobs_test
