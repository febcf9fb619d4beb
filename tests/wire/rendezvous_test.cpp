#include "shoal/wire/rendezvous.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <chrono>

#include "shoal/wire/store.h"

namespace shoal::wire {
namespace {

// Half a second at each of the 15 ports before the store's would be more than the deadline.
TEST(Rendezvous, PortsThatRefuseDoNotHoldUpARankThatLooksForTheStore) {
  constexpr int kPorts = 16;
  const StoreServer store("127.0.0.1", {0, 0}, "key");
  const int first = store.endpoint().port - (kPorts - 1);
  const Deadline deadline = Deadline::in(std::chrono::seconds(4));
  Rendezvous rendezvous(fmt::format("127.0.0.1:{}", first), "key", 1, "127.0.0.1", deadline);
  EXPECT_FALSE(deadline.passed());
}

}  // namespace
}  // namespace shoal::wire
