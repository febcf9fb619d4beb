#include "shoal/base/out_of_memory.h"

#include <gtest/gtest.h>

#include <new>
#include <stdexcept>

namespace shoal::out_of_memory_test {
namespace {

TEST(OutOfMemory, IsToldFromOtherExceptions) {
  EXPECT_EQ(out_of_memory(std::bad_alloc()), "");
  // What LibTorch's allocator says, with the stack trace that it appends.
  const std::runtime_error torch(
      "In forward:\n[enforce fail at alloc_cpu.cpp:117] err == 0. DefaultCPUAllocator: can't "
      "allocate memory: "
      "you tried to allocate 400 bytes.\nframe #0: c10::alloc_cpu");
  EXPECT_EQ(out_of_memory(torch), "can't allocate memory: you tried to allocate 400 bytes.");
  EXPECT_EQ(out_of_memory(std::runtime_error("x: can't allocate memory")), "can't allocate memory");
  EXPECT_EQ(
      out_of_memory(std::runtime_error("CUDA out of memory. Tried to allocate 2 MiB.\nException")),
      "CUDA out of memory. Tried to allocate 2 MiB.");
  EXPECT_EQ(out_of_memory(std::runtime_error("the loss is not a number")), std::nullopt);
}

}  // namespace
}  // namespace shoal::out_of_memory_test
