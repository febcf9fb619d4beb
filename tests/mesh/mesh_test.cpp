#include "shoal/mesh/mesh.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <vector>

#include "shoal/comm/world.h"
#include "tests/error_text.h"
#include "tests/support/fake_communicator.h"

namespace shoal::mesh::mesh_test {
namespace {

const std::vector<AxisSet> kSets{Axis::kPipeline,
                                 Axis::kReplicate,
                                 Axis::kShard,
                                 Axis::kContext,
                                 Axis::kTensor,
                                 Axis::kExpert,
                                 Axis::kExpertData,
                                 Axis::kShard | Axis::kContext,
                                 {Axis::kShard, Axis::kContext, Axis::kTensor},
                                 plan::kStageAxes};

// Which ranks a group has shows a gather of rank numbers; who they should be, the enumeration that
// tests/plan/degrees_test.cpp checks.
TEST(Mesh, GroupsAreTheRanksThatDifferAlongTheirAxes) {
  for (const Degrees& degrees :
       {Degrees{.dp_replicate = 3, .tp = 2}, Degrees{.dp_replicate = 2, .dp_shard = 2, .tp = 2},
        Degrees{.pp = 2, .dp_shard = 2, .cp = 2}, Degrees{.dp_shard = 8}, Degrees{.pp = 4},
        Degrees{.dp_shard = 2, .cp = 2, .tp = 2, .ep = 4}, Degrees{.pp = 2, .tp = 2, .ep = 2}}) {
    const int size = static_cast<int>(degrees.ranks());
    comm::run_on_threads(
        {.size = size, .memory_limit_bytes = std::size_t{1} << 30}, [&](const comm::Group& world) {
          const Mesh mesh(world, degrees);
          EXPECT_EQ(mesh.degrees(), degrees);
          for (const AxisSet& axes : kSets) {
            const auto expected = plan::members(degrees, axes, world.rank());
            const comm::Group& group = mesh.along(axes);
            ASSERT_EQ(group.size(), static_cast<int>(expected.size())) << axes.text();
            ASSERT_EQ(mesh.extent(axes), group.size());
            EXPECT_EQ(expected.at(group.rank()), world.rank()) << axes.text();
            double sum = 0;
            for (const auto rank : expected) sum += static_cast<double>(rank);
            EXPECT_EQ(group.sum(world.rank()), sum) << axes.text();
          }
        });
  }
}

TEST(Mesh, CoordinatesAreThoseOfTheRankInTheGrid) {
  for (int rank = 0; rank < 12; ++rank) {
    const comm::Group world(std::make_shared<collective::FakeCommunicator>(rank, 12));
    const Mesh mesh(world, {.dp_replicate = 2, .dp_shard = 3, .tp = 2});
    EXPECT_EQ(mesh.rank(), rank);
    EXPECT_EQ(mesh.size(), 12);
    EXPECT_EQ(mesh.coordinate(Axis::kReplicate), rank / 6);
    EXPECT_EQ(mesh.coordinate(Axis::kContext), 0);
    EXPECT_EQ(mesh.coordinate(Axis::kShard), rank / 2 % 3);
    EXPECT_EQ(mesh.coordinate(Axis::kTensor), rank % 2);
    EXPECT_EQ(mesh.coordinate(Axis::kPipeline), 0);
    EXPECT_EQ(mesh.along(Axis::kContext).size(), 1);
  }
}

TEST(Mesh, OfOneRankHasGroupsOfOne) {
  const Mesh mesh;
  EXPECT_EQ(mesh.size(), 1);
  EXPECT_EQ(mesh.rank(), 0);
  for (const AxisSet& axes : kSets) EXPECT_EQ(mesh.along(axes).size(), 1) << axes.text();
}

// A set that nobody asked the mesh for is an error, not a silent group of one.
TEST(Mesh, SetsWithoutAGroupAreAnError) {
  const comm::Group world(std::make_shared<collective::FakeCommunicator>(0, 8));
  const Mesh mesh(world, {.pp = 2, .dp_shard = 2, .tp = 2});
  EXPECT_THROW(mesh.along(Axis::kPipeline | Axis::kTensor), Error);
  EXPECT_NO_THROW(mesh.along(Axis::kReplicate | Axis::kTensor)) << "the same ranks as tp alone";
}

TEST(Mesh, DegreesMustFit) {
  const auto refused = [](const Degrees& degrees) {
    return error_text([&] { Mesh({}, degrees); });
  };
  EXPECT_THAT(refused({.tp = 2}), testing::HasSubstr("is 2 ranks, but there are 1"));
  EXPECT_THAT(refused({.tp = 0}), testing::HasSubstr("tp = 0: at least 1"));
  EXPECT_THAT(refused({.pp = -1}), testing::HasSubstr("pp = -1: at least 1"));
  EXPECT_THAT(refused({.ep = 2}),
              testing::HasSubstr("ep = 2: experts are folded into the 1 ranks"));
  EXPECT_THAT(refused({.ep = 0}), testing::HasSubstr("ep = 0"));
}

}  // namespace
}  // namespace shoal::mesh::mesh_test
