#include "shoal/train/config/job_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "shoal/base/file.h"
#include "shoal/base/nearest.h"
#include "shoal/train/config/keys.h"
#include "shoal/train/config/toml_text.h"

namespace shoal::train::job_file_test {
namespace {

using ::testing::HasSubstr;

std::string refusal(const std::string& text, const std::vector<std::string>& sets = {}) {
  try {
    parse_job(text, "job.toml", sets);
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kConfig) << error.what();
    return error.what();
  }
  ADD_FAILURE() << "accepted: " << text;
  return {};
}

TEST(JobFile, ReadsValuesAndWhereTheyStand) {
  const Job job = parse_job(
      "[job]\nname = \"a\"\n\n[training]\nsteps = 7\nmicro_batch = 2\n[optimizer]\nlearning_rate = "
      "1\n",
      "job.toml",
      {"training.micro_batch=4", "optimizer.name=sgd", "data.folders=[\"x\", \"y\"]",
       "data.weights=[1, 2.5]"});
  EXPECT_EQ(job.config.job.name, "a");
  EXPECT_EQ(job.config.training.steps, 7);
  EXPECT_EQ(job.config.training.micro_batch, 4);
  EXPECT_EQ(job.config.optimizer.learning_rate, 1.0);
  EXPECT_EQ(job.config.optimizer.name, OptimizerKind::kSgd);
  EXPECT_EQ(job.config.data.folders, (std::vector<std::string>{"x", "y"}));
  EXPECT_EQ(job.config.data.weights, (std::vector<double>{1, 2.5}));
  EXPECT_EQ(job.origin("training.steps"), "job.toml:5");
  EXPECT_EQ(job.origin("training.micro_batch"), "command line");
  EXPECT_EQ(job.origin("optimizer.beta1"), "default");
}

TEST(JobFile, NamesTheNearestKeySectionAndWord) {
  EXPECT_EQ(refusal("[optimizer]\nlerning_rate = 1\n"),
            "[job] job.toml:2: optimizer.lerning_rate: no such key; [optimizer] has name, "
            "learning_rate, beta1, beta2, epsilon, momentum, nesterov, "
            "weight_decay, clip_norm, state_folder. Hint: did you mean \"learning_rate\"?");
  EXPECT_THAT(refusal("\n[optimiser]\n"), HasSubstr("job.toml:2: [optimiser]: no such section"));
  for (const auto& [theirs, ours] : {std::pair{"[optimizer]\nlr = 1e-3\n", "learning_rate"},
                                     {"[optimizer]\nwd = 0.1\n", "weight_decay"},
                                     {"[optimizer]\ngrad_clip = 1.0\n", "clip_norm"},
                                     {"[training]\nbatch_size = 8\n", "global_batch_sequences"},
                                     {"[training]\nseq_len = 8\n", "sequence_length"},
                                     {"[training]\nmax_steps = 8\n", "steps"}}) {
    EXPECT_THAT(refusal(theirs), HasSubstr(std::string("did you mean \"") + ours + "\"?"));
  }
  EXPECT_THAT(refusal("\n[optimiser]\n"), HasSubstr("did you mean [optimizer]?"));
  EXPECT_EQ(refusal("[optimizer]\nname = \"adamv\"\n"),
            "[job] job.toml:2: optimizer.name = \"adamv\": must be one of \"adamw\", \"sgd\". "
            "Hint: did you mean \"adamw\"?");
  EXPECT_THAT(refusal("[training]\nlearning_rate = 1\n"),
              HasSubstr("\"learning_rate\" is a key of [optimizer]"));
  EXPECT_THAT(refusal("steps = 1\n"), HasSubstr("\"steps\" is a key of [training]"));
  EXPECT_THAT(refusal("", {"training.stesp=1"}),
              HasSubstr("command line: training.stesp: no such key"));
}

TEST(JobFile, NamesWhatATypeOrRangeAllows) {
  EXPECT_EQ(refusal("[training]\nsteps = \"many\"\n"),
            "[job] job.toml:2: training.steps = \"many\": must be a whole number from 1 to 1e+12");
  EXPECT_THAT(refusal("[training]\nsteps = 1.5\n"),
              HasSubstr("training.steps = 1.5: must be a whole number"));
  EXPECT_THAT(refusal("[training]\nsteps = 0\n"),
              HasSubstr("training.steps = 0: must be a whole number from 1"));
  EXPECT_THAT(refusal("[optimizer]\nepsilon = 0\n"),
              HasSubstr("optimizer.epsilon = 0.0: must be a number above 0"));
  EXPECT_THAT(refusal("[optimizer]\nlearning_rate = nan\n"),
              HasSubstr("optimizer.learning_rate = nan: must be a number of at least 0"));
  EXPECT_THAT(refusal("[optimizer]\nnesterov = 1\n"), HasSubstr("must be true or false"));
  EXPECT_THAT(refusal("[data]\nfolders = \"x\"\n"), HasSubstr("must be a list of texts"));
  EXPECT_THAT(refusal("[data]\nfolders = [1]\n"), HasSubstr("must be a list of texts"));
  EXPECT_THAT(refusal("training = 3\n"), HasSubstr("job.toml:1: training: must be a section"));
  EXPECT_THAT(refusal("[training\n"), HasSubstr("job.toml:1: not TOML"));
  EXPECT_THAT(refusal("[training]\nsteps = 1\nsteps = 2\n"), HasSubstr("job.toml:3: not TOML"));
  EXPECT_THAT(refusal("", {"training.steps=x"}),
              HasSubstr("command line: training.steps = x: must be a whole number"));
}

TEST(JobFile, AValueOfTheCommandLineIsOneValue) {
  EXPECT_THAT(refusal("", {"training.steps=1\nmicro_batch = 2"}), HasSubstr("training.steps"));
  const Job job = parse_job("", "job.toml", {"job.name=7", "job.description=a = b"});
  EXPECT_EQ(job.config.job.name, "7");
  EXPECT_EQ(job.config.job.description, "a = b");
}

TEST(JobFile, TheCommandLineDisplacesTheSameThingInOtherUnits) {
  const std::string text = "[training]\nepochs = 2\nglobal_batch_tokens = 512\n";
  Job job = parse_job(text, "job.toml", {"training.steps=3", "training.global_batch_sequences=4"});
  EXPECT_EQ(job.config.training.steps, 3);
  EXPECT_FALSE(job.config.training.epochs);
  EXPECT_EQ(job.origin("training.epochs"), "default");
  EXPECT_FALSE(job.config.training.global_batch_tokens);
  job = parse_job(text, "job.toml", {"training.steps=3", "training.tokens=4"});
  EXPECT_TRUE(job.config.training.steps && job.config.training.tokens)
      << "two on the command line contradict each other";
}

TEST(JobFile, WritingAndReadingGivesTheSameValues) {
  Job job = parse_job(
      "[model]\nname = \"gpt2-tiny\"\nwidths = [3, 4]\ndropout = 0.1\n[job]\ndescription = "
      "\"tab\\t quote \\\" back \\\\ line\\n bell \\u0007 ü\"\n"
      "[data]\nfolders = [\"a b\", \"c\"]\n[optimizer]\nlearning_rate = "
      "0.30000000000000004\nepsilon = 1e-300\n",
      "job.toml");
  const std::string written = to_toml(job.config);
  const Job again = parse_job(written, "config.toml");
  EXPECT_EQ(to_toml(again.config), written);
  EXPECT_EQ(again.config.optimizer.learning_rate, 0.30000000000000004);
  EXPECT_EQ(again.config.optimizer.epsilon, 1e-300);
  EXPECT_EQ(again.config.job.description, job.config.job.description);
  EXPECT_EQ(again.config.model.widths, job.config.model.widths);
}

TEST(PrintConfig, ShowsEveryKeyAndItsOrigin) {
  const Job job = parse_job("[training]\nsteps = 7\n", "job.toml", {"debug.seed=3"});
  const std::string text = print_config(job);
  for (const ConfigKey& key : all_keys()) {
    EXPECT_THAT(text, HasSubstr("\n" + (value_text(key, job.config).empty() ? "# " + key.name
                                                                            : key.name + " = ")));
  }
  EXPECT_THAT(text, HasSubstr("# job.toml:2\n"));
  EXPECT_THAT(text, HasSubstr("# command line\n"));
  EXPECT_EQ(to_toml(parse_job(text, "printed").config), to_toml(job.config));
}

TEST(ConfigReference, ThePageInTheDocumentationIsThatOfThisCode) {
  EXPECT_EQ(read_text(SHOAL_SOURCE_DIR "/docs/reference/job.md"), config_reference())
      << "write it anew: build/release/bin/shoal train --help-config > docs/reference/job.md";
}

TEST(Keys, EveryDefaultIsAllowed) {
  const Job defaults = parse_job(to_toml(JobConfig()), "defaults");
  EXPECT_EQ(to_toml(defaults.config), to_toml(JobConfig()));
  for (const ConfigKey& key : all_keys()) {
    EXPECT_FALSE(key.doc.empty()) << key.path();
    EXPECT_EQ(find_key(key.section, key.name), &key) << key.path() << " is declared twice";
  }
}

TEST(Nearest, CountsEditsAndRefusesTheFar) {
  EXPECT_EQ(edit_distance("", "abc"), 3);
  EXPECT_EQ(edit_distance("kitten", "sitting"), 3);
  EXPECT_EQ(edit_distance("stesp", "steps"), 1);
  const std::vector<std::string> words = {"adamw", "sgd"};
  EXPECT_EQ(nearest("adam", words), "adamw");
  EXPECT_EQ(nearest("lion", words), "");
  EXPECT_EQ(nearest("", words), "");
}

// A third of the letters may be wrong, and two of a short word; two letters that changed places are
// one mistake.
TEST(Nearest, LongerWordsMayHaveMoreMistakes) {
  EXPECT_EQ(edit_distance("abcd", "abdc"), 1);
  EXPECT_EQ(edit_distance("abcd", "badc"), 2);
  EXPECT_EQ(edit_distance("abc", "xyz"), 3);
  const std::vector<std::string> one = {"abcdefghijkl"};
  EXPECT_EQ(nearest("ABCDefghijkl", one), one[0]) << "four of twelve";
  EXPECT_EQ(nearest("ABCDEfghijkl", one), "") << "five of twelve";
  const std::vector<std::string> shorter = {"abcd"};
  EXPECT_EQ(nearest("ABcd", shorter), "abcd");
  EXPECT_EQ(nearest("ABCd", shorter), "");
  const std::vector<std::string> two = {"ab", "AB"};
  EXPECT_EQ(nearest("aB", two), "ab") << "the first of equals";
  EXPECT_EQ(nearest("xy", two), "") << "nothing in common";
}

}  // namespace
}  // namespace shoal::train::job_file_test
