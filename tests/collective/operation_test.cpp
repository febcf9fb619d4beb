#include "shoal/collective/operation.h"

#include <gtest/gtest.h>

#include "shoal/collective/fabric.h"
#include "shoal/collective/hierarchy/hierarchical_communicator.h"

namespace shoal::collective::operation_test {
namespace {

struct Row {
  Kind kind;
  const char* name;
  bool root;
  bool reduces;
  bool message;
  bool parts;
};

constexpr Row kRows[] = {
    {Kind::kAllReduce, "all_reduce", false, true, false, false},
    {Kind::kReduce, "reduce", true, true, false, false},
    {Kind::kBroadcast, "broadcast", true, false, false, false},
    {Kind::kAllGather, "all_gather", false, false, false, false},
    {Kind::kReduceScatter, "reduce_scatter", false, true, false, true},
    {Kind::kAllToAll, "all_to_all", false, false, false, true},
    {Kind::kGather, "gather", true, false, false, false},
    {Kind::kScatter, "scatter", true, false, false, true},
    {Kind::kSend, "send", false, false, true, false},
    {Kind::kReceive, "recv", false, false, true, false},
    {Kind::kBarrier, "barrier", false, false, false, false},
};

TEST(Kind, IsWhatItsTableSays) {
  for (const Row& row : kRows) {
    EXPECT_STREQ(name(row.kind), row.name);
    EXPECT_EQ(has_root(row.kind), row.root) << row.name;
    EXPECT_EQ(reduces(row.kind), row.reduces) << row.name;
    EXPECT_EQ(point_to_point(row.kind), row.message) << row.name;
    EXPECT_EQ(for_each_rank(row.kind), row.parts) << row.name;
  }
  EXPECT_STREQ(name(static_cast<Kind>(200)), "unknown");
}

TEST(Reduction, HasTheNameThatPyTorchGivesIt) {
  const char* const names[] = {"sum",         "product",    "min",         "max",       "avg",
                               "bitwise_and", "bitwise_or", "bitwise_xor", "premul_sum"};
  for (int i = 0; i < 9; ++i) EXPECT_STREQ(name(static_cast<Reduction>(i)), names[i]);
  EXPECT_STREQ(name(static_cast<Reduction>(9)), "unknown");
}

// Who says nothing gets these.
TEST(Operation, HasTheDefaultsOfItsDocumentation) {
  const Operation o;
  EXPECT_EQ(o.reduction, Reduction::kSum);
  EXPECT_EQ(o.memory, MemoryKind::kHost);
  EXPECT_EQ(o.peer, -1);
  EXPECT_EQ(o.tag, 0u);
  EXPECT_EQ(o.priority, 0);
  EXPECT_EQ(o.scale, 1);
  EXPECT_EQ(o.timeout, Duration::zero());
  EXPECT_FALSE(o.shared_output);
  EXPECT_EQ(HostCommunicator::Options().timeout, std::chrono::minutes(10));
  EXPECT_EQ(TcpCommunicator::Options().timeout, std::chrono::minutes(10));
  EXPECT_FALSE(TcpCommunicator::Options().in_rank_order);
  EXPECT_EQ(HierarchicalCommunicator::Options().timeout, std::chrono::minutes(10));
  EXPECT_EQ(Fabric::Options().timeout, std::chrono::minutes(10));
  EXPECT_TRUE(Fabric::Options().shares_memory);
  EXPECT_FALSE(TransportOptions().in_rank_order);
}

}  // namespace
}  // namespace shoal::collective::operation_test
