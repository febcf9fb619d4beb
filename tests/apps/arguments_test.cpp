// What commands pass on to the library that has Torch.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/apps/program.h"

namespace shoal::apps::testing::arguments_test {
namespace {

using ::testing::HasSubstr;

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
