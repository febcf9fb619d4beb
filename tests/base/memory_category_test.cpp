#include "shoal/base/memory_category.h"

#include <gtest/gtest.h>

#include <string>
#include <thread>
#include <vector>

namespace shoal::memory_category_test {
namespace {

TEST(MemoryCategory, HasAName) {
  std::vector<std::string> names;
  for (int i = 0; i < kMemoryCategories; ++i)
    names.emplace_back(name(static_cast<MemoryCategory>(i)));
  EXPECT_EQ(names, (std::vector<std::string>{"temporary", "parameters", "gradients", "optimizer",
                                             "activations", "communication"}));
  EXPECT_STREQ(name(static_cast<MemoryCategory>(kMemoryCategories)), "unknown");
}

TEST(MemoryCategory, AScopeEndsWithTheOneAroundIt) {
  const auto now = [] { return memory_context().category; };
  EXPECT_EQ(now(), MemoryCategory::kTemporary);
  {
    const ScopedCategory outer(MemoryCategory::kGradients);
    {
      const ScopedCategory inner(MemoryCategory::kActivations);
      EXPECT_EQ(now(), MemoryCategory::kActivations);
    }
    EXPECT_EQ(now(), MemoryCategory::kGradients);
  }
  EXPECT_EQ(now(), MemoryCategory::kTemporary);
}

TEST(MemoryCategory, EveryThreadHasItsOwn) {
  const ScopedCategory here(MemoryCategory::kOptimizer);
  memory_context().rank = 5;
  std::thread([] {
    EXPECT_EQ(memory_context().rank, 0);
    EXPECT_EQ(memory_context().category, MemoryCategory::kTemporary);
    const ScopedCategory there(MemoryCategory::kParameters);
    memory_context().rank = 7;
  }).join();
  EXPECT_EQ(memory_context().rank, 5);
  EXPECT_EQ(memory_context().category, MemoryCategory::kOptimizer);
  memory_context().rank = 0;
}

}  // namespace
}  // namespace shoal::memory_category_test
