// What commands pass on to the library that has Torch.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/apps/program.h"

namespace shoal::apps::testing::arguments_test {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

TEST(Arguments, OfGenerate) {
  const Folder folder;
  const auto said = [&](std::vector<std::string> more) {
    more.insert(more.begin(),
                {shoal_program(), "generate", "--checkpoint", "here", "--prompt", "hello"});
    return run(more, folder.path());
  };
  EXPECT_EQ(said({}).out,
            "checkpoint here prompt hello tokens 200 temperature 0.8 top_k 0 top_p 1 seed 0 cache "
            "true probabilities 0 json false copies [] threads 0\n");
  EXPECT_EQ(said({"--tokens", "3", "--temperature", "0", "--top-k", "4", "--top-p", "0.5", "--seed",
                  "6", "--no-cache", "--probabilities", "5", "--json", "--check-copies", "data",
                  "--threads", "7"})
                .out,
            "checkpoint here prompt hello tokens 3 temperature 0 top_k 4 top_p 0.5 seed 6 cache "
            "false probabilities 5 json true copies [data] threads 7\n");
  for (const auto& words : std::vector<std::vector<std::string>>{{"--tokens", "0"},
                                                                 {"--temperature", "-1"},
                                                                 {"--temperature", "101"},
                                                                 {"--top-k", "-1"},
                                                                 {"--top-p", "1.1"},
                                                                 {"--top-p", "-0.1"},
                                                                 {"--probabilities", "-1"},
                                                                 {"--threads", "-1"},
                                                                 {"--threads", "4097"}})
    EXPECT_EQ(said(words).code, 2) << words[0] << " " << words[1];
  EXPECT_EQ(run({shoal_program(), "generate", "--prompt", "x"}, folder.path()).code, 2);
  EXPECT_EQ(run({shoal_program(), "generate", "--checkpoint", "x"}, folder.path()).code, 2);
}

TEST(Arguments, WrongOnesAreNamedWithTheNearest) {
  const Folder folder;
  const auto refused = [&](std::vector<std::string> words) {
    words.insert(words.begin(), shoal_program());
    const Outcome outcome = run(words, folder.path());
    EXPECT_EQ(outcome.code, 2);
    return outcome.err;
  };
  EXPECT_THAT(refused({"trian", "x"}),
              StartsWith("shoal: no command 'trian'. Hint: did you mean train?\n"));
  EXPECT_THAT(refused({"frobnicate"}),
              HasSubstr("no command 'frobnicate'. Hint: there are train, "));
  EXPECT_THAT(refused({}), StartsWith("shoal: shoal: name a command: train, "));
  EXPECT_THAT(refused({"data", "prepair"}), HasSubstr("no command 'prepair'. Hint: did you mean "
                                                      "prepare?"));
  EXPECT_THAT(refused({"data"}), HasSubstr("shoal data: name a command: prepare, "));
  EXPECT_THAT(refused({"train", "job.toml", "--gpus", "2"}),
              HasSubstr("shoal train has no option --gpus. Hint: --set parallelism.device=cuda"));
  EXPECT_THAT(refused({"train", "job.toml", "--nprocs", "2"}),
              HasSubstr("shoal train has no option --nprocs. Hint: did you mean --nproc?"));
  EXPECT_THAT(refused({"train", "job.toml", "a", "b"}), HasSubstr("does not expect: a b\n"));
  EXPECT_THAT(refused({"train", "job.toml", "--nproc", "two"}), HasSubstr("two"));
  EXPECT_THAT(refused({"generate", "--prompt", "x"}), HasSubstr("--checkpoint is required"));
}

TEST(Arguments, OfEval) {
  const Folder folder;
  const auto said = [&](std::vector<std::string> more) {
    more.insert(more.begin(), {shoal_program(), "eval", "--checkpoint", "here"});
    return run(more, folder.path());
  };
  EXPECT_EQ(said({}).out,
            "checkpoint here split validation folders [] batches 0 json false threads 0\n");
  EXPECT_EQ(
      said({"--split", "train", "--data", "a", "b", "--batches", "2", "--json", "--threads", "3"})
          .out,
      "checkpoint here split train folders [a,b] batches 2 json true threads 3\n");
  EXPECT_EQ(said({"--split", "test"}).code, 2);
  EXPECT_EQ(said({"--batches", "-1"}).code, 2);
  EXPECT_EQ(said({"--threads", "4097"}).code, 2);
  EXPECT_EQ(run({shoal_program(), "eval"}, folder.path()).code, 2);
}

}  // namespace
}  // namespace shoal::apps::testing::arguments_test
