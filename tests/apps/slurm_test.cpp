#include "apps/shoal/slurm.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/error_of.h"

namespace shoal::apps::slurm_test {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST(NodeList, EveryFormThatSlurmWrites) {
  EXPECT_THAT(expand_node_list("n1"), ElementsAre("n1"));
  EXPECT_THAT(expand_node_list("n1,m.x"), ElementsAre("n1", "m.x"));
  EXPECT_THAT(expand_node_list("n[3,1],a"), ElementsAre("n3", "n1", "a")) << "the order is kept";
  EXPECT_THAT(expand_node_list("n[08-11]"), ElementsAre("n08", "n09", "n10", "n11"));
  EXPECT_THAT(expand_node_list("n[098-101]"), ElementsAre("n098", "n099", "n100", "n101"));
  EXPECT_THAT(expand_node_list("n[1-2,007]"), ElementsAre("n1", "n2", "n007"));
  EXPECT_THAT(expand_node_list("r[1-2]n[01-02]"), ElementsAre("r1n01", "r1n02", "r2n01", "r2n02"));
  EXPECT_THAT(expand_node_list("gpu-[7]-ib"), ElementsAre("gpu-7-ib"));
  EXPECT_EQ(expand_node_list("n[1-100000]").back(), "n100000");
}

TEST(NodeList, RefusesWhatIsNone) {
  for (const char* text : {"", "n[1", "n1]", "n]1[", "n[]", "n[a-b]", "n[3-1]", "n[1-]", "n[-1]",
                           "n1,,n2", ",n", "n,", "n 1", "n[[1]]"})
    EXPECT_THAT(error_of([&] { expand_node_list(text); }).message(), HasSubstr("is broken"))
        << text;
  for (const char* text : {"n[1-100001]", "n[1-400][1-400]", "a[1-60000],b[1-60000]"})
    EXPECT_THAT(error_of([&] { expand_node_list(text); }).message(),
                HasSubstr("more than 100000 nodes"))
        << text;
}

TEST(SlurmTasks, AreThoseOfTheNode) {
  for (const auto& [node, tasks] : {std::pair{0, 2}, {1, 2}, {2, 2}, {3, 1}})
    EXPECT_EQ(tasks_on_node("2(x3),1", node), tasks) << node;
  EXPECT_EQ(tasks_on_node("2(x3),1", 4), std::nullopt);
  for (const char* text : {"", "two", "2(x)", "2(x0)", "2(x-1)", "-2", "2x3"})
    EXPECT_EQ(tasks_on_node(text, 0), std::nullopt) << text;
}

TEST(SlurmPort, IsOfOneStep) {
  EXPECT_EQ(slurm_port("77", "0"), slurm_port("77", "0"));
  EXPECT_NE(slurm_port("77", "0"), slurm_port("77", "1"));
  EXPECT_NE(slurm_port("77", "0"), slurm_port("78", "0"));
  for (int job = 0; job < 1000; ++job) {
    const int port = slurm_port(std::to_string(job), "0");
    EXPECT_GE(port, 20000);
    EXPECT_LT(port, 30000);
  }
}

}  // namespace
}  // namespace shoal::apps::slurm_test
