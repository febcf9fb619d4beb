#include "shoal/mesh/mesh.h"

#include <ATen/ops/full.h>
#include <gtest/gtest.h>

#include "shoal/comm/world.h"
#include "tests/support/fake_communicator.h"

namespace shoal::mesh {
namespace {

TEST(Mesh, EveryAxisHasItsOwnGroup) {
  comm::run_on_threads({.size = 6, .memory_limit_bytes = std::size_t{1} << 30},
                       [](const comm::Group& world) {
                         const Mesh mesh(world, {{"replicate", 3}, {"tensor", 2}});
                         EXPECT_EQ(mesh.coordinate("replicate"), world.rank() / 2);
                         EXPECT_EQ(mesh.coordinate("tensor"), world.rank() % 2);
                         EXPECT_EQ(mesh.group("replicate").rank(), world.rank() / 2);
                         EXPECT_EQ(mesh.extent("pipeline"), 1);
                         EXPECT_EQ(mesh.group("pipeline").size(), 1);
                         at::Tensor along_tensor = at::full({1}, static_cast<float>(world.rank()));
                         at::Tensor along_replicate = along_tensor.clone();
                         mesh.group("tensor").all_reduce(along_tensor);
                         mesh.group("replicate").all_reduce(along_replicate);
                         EXPECT_EQ(along_tensor.item<float>(), 4 * (world.rank() / 2) + 1);
                         EXPECT_EQ(along_replicate.item<float>(), 6 + 3 * (world.rank() % 2));
                       });
}

// The last axis varies fastest.
TEST(Mesh, CoordinatesAreThoseOfTheRankInTheGrid) {
  for (int rank = 0; rank < 12; ++rank) {
    const comm::Group world(std::make_shared<collective::FakeCommunicator>(rank, 12));
    const Mesh mesh(world, {{"replicate", 2}, {"context", 1}, {"shard", 3}, {"tensor", 2}});
    EXPECT_EQ(mesh.rank(), rank);
    EXPECT_EQ(mesh.size(), 12);
    EXPECT_EQ(mesh.coordinate("replicate"), rank / 6);
    EXPECT_EQ(mesh.coordinate("context"), 0);
    EXPECT_EQ(mesh.coordinate("shard"), rank / 2 % 3);
    EXPECT_EQ(mesh.coordinate("tensor"), rank % 2);
    EXPECT_EQ(mesh.coordinate("pipeline"), 0);
    EXPECT_EQ(mesh.extent("shard"), 3);
    EXPECT_TRUE(mesh.has("context"));
    EXPECT_FALSE(mesh.has("pipeline"));
    EXPECT_EQ(mesh.group("context").size(), 1);
  }
}

TEST(Mesh, EveryAxisOfThreeHasItsOwnGroup) {
  comm::run_on_threads({.size = 8, .memory_limit_bytes = std::size_t{1} << 30}, [](const comm::
                                                                                       Group&
                                                                                           world) {
    const Mesh mesh(world, {{"replicate", 2}, {"shard", 2}, {"tensor", 2}});
    for (const auto& [axis, stride] : {std::pair{"replicate", 4}, {"shard", 2}, {"tensor", 1}}) {
      const int own = world.rank() / stride % 2;
      EXPECT_EQ(mesh.group(axis).rank(), own) << axis;
      const double other = world.rank() + (own == 0 ? stride : -stride);
      EXPECT_EQ(mesh.group(axis).sum(world.rank()), world.rank() + other) << axis;
    }
    const Mesh flat(world, {{"shard", 8}});
    EXPECT_EQ(flat.group("shard").sum(1), 8);
  });
}

TEST(Mesh, OfOneRankHasNoAxes) {
  const Mesh mesh;
  EXPECT_EQ(mesh.size(), 1);
  EXPECT_EQ(mesh.rank(), 0);
  EXPECT_TRUE(mesh.axes().empty());
  EXPECT_EQ(mesh.group("tensor").size(), 1);
}

TEST(Mesh, SizesMustFit) {
  EXPECT_THROW(Mesh({}, {{"tensor", 2}}), Error);
  EXPECT_THROW(Mesh({}, {{"tensor", 1}, {"tensor", 1}}), Error);
  EXPECT_THROW(Mesh({}, {{"tensor", 0}}), Error);
}

}  // namespace
}  // namespace shoal::mesh
