#include "shoal/mesh/mesh.h"

#include <ATen/ops/full.h>
#include <gtest/gtest.h>

#include "shoal/comm/world.h"

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

TEST(Mesh, SizesMustFit) {
  EXPECT_THROW(Mesh({}, {{"tensor", 2}}), Error);
  EXPECT_THROW(Mesh({}, {{"tensor", 1}, {"tensor", 1}}), Error);
  EXPECT_THROW(Mesh({}, {{"tensor", 0}}), Error);
}

}  // namespace
}  // namespace shoal::mesh
