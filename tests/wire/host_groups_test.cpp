#include "shoal/wire/host_groups.h"

#include <gtest/gtest.h>

#include <map>
#include <string>
#include <thread>
#include <vector>

#include "tests/wire/soon.h"

namespace shoal::wire::host_groups_test {
namespace {

/// A store of one process. The keys of the ranks that a test plays are there before they are asked
/// for.
class Known final : public KeyValues {
 public:
  void set(const std::string& key, const std::string& value, Deadline) override {
    values[key] = value;
  }
  std::string wait(const std::string& key, Deadline) override { return values.at(key); }
  std::string address() override { return ""; }

  std::map<std::string, std::string> values;
};

/// What each of four ranks proposes when they call with these names.
std::vector<int> proposed(const std::vector<std::string>& names) {
  Known store;
  const int size = static_cast<int>(names.size());
  for (int r = size - 1; r > 0; --r) {
    try {
      propose_hosts(store, r, size, names[static_cast<std::size_t>(r)], soon());
    } catch (const std::out_of_range&) {  // it has said its own, and the first ones are not there
    }
  }
  return propose_hosts(store, 0, size, names[0], soon());
}

TEST(HostGroups, RanksOfOneKernelAndNameAreOneHost) {
  EXPECT_EQ(proposed({"", "", ""}), (std::vector<int>{0, 0, 0}));
  EXPECT_EQ(proposed({"a", "b", "a", "b"}), (std::vector<int>{0, 1, 0, 1}));
  EXPECT_EQ(proposed({"a", "b", "b", "c"}), (std::vector<int>{0, 1, 1, 3}));
}

// A rank that does not know its kernel says nothing, and is a host of its own.
TEST(HostGroups, WhoSaysNothingIsAlone) {
  Known store;
  store.values["host/1"] = "";
  store.values["host/2"] = "";
  EXPECT_EQ(propose_hosts(store, 0, 3, "", soon()), (std::vector<int>{0, 1, 2}));
}

TEST(HostGroups, AHostOfWhichOneRankHasNoProofIsWithdrawn) {
  const std::vector<int> hosts{0, 1, 0, 1, 4};
  const auto agreed = [&](const std::vector<bool>& proven) {
    Known store;
    for (std::size_t r = 1; r < proven.size(); ++r)
      store.values["shares/" + std::to_string(r)] = proven[r] ? "yes" : "no";
    return agree_on_hosts(store, 0, hosts, proven[0], soon());
  };
  EXPECT_EQ(agreed({true, true, true, true, true}), hosts);
  EXPECT_EQ(agreed({true, true, true, false, true}), (std::vector<int>{0, 1, 0, 3, 4}));
  EXPECT_EQ(agreed({false, true, true, true, true}), (std::vector<int>{0, 1, 2, 1, 4}));
  EXPECT_EQ(agreed({true, true, true, true, false}), hosts) << "it is alone anyway";
}

}  // namespace
}  // namespace shoal::wire::host_groups_test
