#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdio.h>
#include <sys/wait.h>

#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>

#include "shoal/checkpoint/format/value_checksum.h"
#include "tests/checkpoint_format/scratch.h"
#include "tests/checkpoint_format/written_checkpoint.h"

namespace shoal::checkpoint::format::command_test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

struct Ending {
  int code = -1;
  std::string text;  ///< both outputs
};

Ending shoal(const std::string& words) {
  Ending ending;
  FILE* pipe = ::popen((std::string(SHOAL_PROGRAM) + " ckpt " + words + " 2>&1").c_str(), "r");
  char part[4096];
  for (std::size_t got; (got = ::fread(part, 1, sizeof part, pipe)) > 0;)
    ending.text.append(part, got);
  const int status = ::pclose(pipe);
  ending.code = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  return ending;
}

class Command : public ::testing::Test {
 protected:
  Command() {
    for (const int step : {2, 10}) {
      testing::write_checkpoint(scratch_ / "run/checkpoints", step,
                                {{testing::source("model.w", {4, 2}, {{0, 0}, {1, 2}}, step)},
                                 {testing::source("model.w", {4, 2}, {{1, 0}, {4, 2}}, step)}});
    }
  }
  std::string step(int number) const {
    return scratch_ / ("run/checkpoints/step-" + std::to_string(number));
  }

  testing::Scratch scratch_;
};

TEST_F(Command, LsListsThoseOfARun) {
  const Ending ending = shoal("ls --json " + scratch_ / "run");
  ASSERT_EQ(ending.code, 0) << ending.text;
  const auto list = nlohmann::json::parse(ending.text);
  ASSERT_EQ(list.size(), 2);
  EXPECT_EQ(list[0]["step"], 2);
  EXPECT_EQ(list[1]["parameters"], 8);
  EXPECT_EQ(list[1]["files"], 2);
  EXPECT_THAT(shoal("ls " + scratch_ / "run").text,
              AllOf(HasSubstr("parameters"), HasSubstr("step-10")));
}

TEST_F(Command, ShowTellsTypeShapeAndValues) {
  const Ending ending = shoal("show --json " + scratch_ / "run");
  ASSERT_EQ(ending.code, 0) << ending.text;
  const auto root = nlohmann::json::parse(ending.text);
  EXPECT_EQ(root["step"], 10);
  EXPECT_EQ(root["metadata"]["cursor"], 7);
  const auto values = testing::counted(whole({4, 2}), {4, 2}, 10);
  const nlohmann::json expected{
      {"name", "model.w"},
      {"type", "i32"},
      {"shape", {4, 2}},
      {"checksum", hex(value_checksum(values.data(), ElementType::kI32, 0, 8))}};
  EXPECT_EQ(root["tensors"], nlohmann::json::array({expected}));
  EXPECT_THAT(shoal("show " + step(2)).text, AllOf(HasSubstr("model.w"), HasSubstr("[4, 2]")));
}

TEST_F(Command, VerifyFindsDamage) {
  EXPECT_EQ(shoal("verify " + step(10)).code, 0);
  testing::flip_byte(step(10) + "/shard-0001-00.safetensors",
                     std::filesystem::file_size(step(10) + "/shard-0001-00.safetensors") - 1);
  const Ending ending = shoal("verify " + step(10));
  EXPECT_EQ(ending.code, 65);
  EXPECT_THAT(ending.text, AllOf(HasSubstr("shard-0001-00.safetensors"),
                                 HasSubstr("model.w[1:4, 0:2]"), HasSubstr("Hint")));
  EXPECT_EQ(shoal("verify " + scratch_ / "absent").code, 66);
  EXPECT_EQ(shoal("verify").code, 2);
}

TEST_F(Command, DiffAndReshardAgree) {
  EXPECT_EQ(shoal("reshard --files 1 " + step(2) + " " + scratch_ / "whole").code, 0);
  const Ending same = shoal("diff " + step(2) + " " + scratch_ / "whole");
  EXPECT_EQ(same.code, 0) << same.text;
  const Ending other = shoal("diff " + step(2) + " " + step(10));
  EXPECT_EQ(other.code, 1);
  EXPECT_THAT(other.text, HasSubstr("model.w: 8 of 8 elements differ"));
  EXPECT_EQ(shoal("reshard --files 0 " + step(2) + " " + scratch_ / "none").code, 2);
  EXPECT_EQ(shoal("export " + step(2) + " " + scratch_ / "theirs").code, 65)
      << "there is no model in the metadata";
}

}  // namespace
}  // namespace shoal::checkpoint::format::command_test
