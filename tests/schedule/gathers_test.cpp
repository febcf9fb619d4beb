#include "shoal/schedule/gathers.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "shoal/base/error.h"
#include "shoal/schedule/generators.h"
#include "shoal/schedule/schedule_file.h"
#include "shoal/schedule/timeline.h"

namespace shoal::schedule::gathers_test {
namespace {

Schedule table_of(const std::string& name, int ranks) {
  const bool looped = name == "interleaved" || name == "zb-v" || name == "dualpipe-v";
  return make_schedule(name, ranks, looped ? 2 : 1, 2 * ranks);
}

/// Walks one list, and returns how often stages were gathered; `most` is the most at once.
int gathers_of(const std::vector<Action>& actions, int* most) {
  std::set<int> held;
  int count = 0;
  for (const Action& action : actions) {
    if (action.kind == Kind::kGather) {
      ++count;
      held.insert(action.stage);
    }
    if (action.kind == Kind::kRelease) held.erase(action.stage);
    *most = std::max(*most, static_cast<int>(held.size()));
    const bool reads = action.kind == Kind::kForward || action.kind == Kind::kBackward ||
                       action.kind == Kind::kInputGradient;
    if (reads) {
      EXPECT_TRUE(held.contains(action.stage)) << to_string(action);
    }
  }
  EXPECT_TRUE(held.empty());
  return count;
}

TEST(Gathers, EveryTableHasTheStagesThatItUsesAndNeverMore) {
  for (const std::string& name : schedule_names()) {
    for (const int ranks : {2, 4, 8}) {
      const Schedule plain = table_of(name, ranks);
      for (const int held : {0, 1, 2, 3}) {
        Schedule table = plain;
        add_gathers(table, held);
        EXPECT_NO_THROW(check(table)) << name;
        const int chunks = plain.stages() / ranks;
        for (int rank = 0; rank < ranks; ++rank) {
          int most = 0;
          const int count = gathers_of(table.table[rank], &most);
          const int room = held == 0 ? chunks : std::min(held, chunks);
          EXPECT_EQ(most, room) << name << " rank " << rank;
          // What has room for all of its stages gathers each once.
          if (room == chunks) {
            EXPECT_EQ(count, chunks) << name << " rank " << rank;
          }
          // The other actions are those of the table without gathers, in their order.
          auto others = table.table[rank];
          std::erase_if(others, [](const Action& one) { return moves_parameters(one.kind); });
          EXPECT_EQ(others, plain.table[rank]) << name;
        }
        EXPECT_EQ(from_csv(to_csv(table), table.name).table, table.table) << name;
      }
    }
  }
}

// The gather goes along with the wait for the input: it stands in front of it.
TEST(Gathers, StandBeforeTheReceive) {
  Schedule table = one_forward_one_backward(2, 1);
  add_gathers(table, 1);
  EXPECT_EQ(to_csv(table),
            "0UNSHARD,0F0,0SEND_F0,0RECV_B0,0B0,0RESHARD\n"
            "1UNSHARD,1RECV_F0,1F0,1B0,1SEND_B0,1RESHARD\n");
}

// The forward passes of a table hold what they use and no more than the table does; those of a
// table without gathers gather nothing.
TEST(Gathers, ForwardPassesAloneHoldAsMuchAtMost) {
  for (const std::string& name : schedule_names()) {
    const Schedule plain = table_of(name, 4);
    EXPECT_EQ(forward_with_gathers(plain), forward_only(plain)) << name;
    for (const int held : {0, 1, 2}) {
      Schedule table = plain;
      add_gathers(table, held);
      const Schedule forward = forward_with_gathers(table);
      const int chunks = plain.stages() / 4;
      for (int rank = 0; rank < 4; ++rank) {
        int most = 0;
        const int count = gathers_of(forward.table[rank], &most);
        EXPECT_EQ(most, held == 0 ? chunks : std::min(held, chunks)) << name << " rank " << rank;
        EXPECT_GE(count, chunks) << name << " rank " << rank;
        auto others = forward.table[rank];
        std::erase_if(others, [](const Action& one) { return moves_parameters(one.kind); });
        EXPECT_EQ(others, forward_only(plain).table[rank]) << name;
      }
    }
  }
}

TEST(Gathers, DamagedTablesAreRefused) {
  Schedule good = make_schedule("zb-v", 2, 2, 4);
  add_gathers(good, 1);
  for (int rank = 0; rank < 2; ++rank) {
    for (std::size_t i = 0; i < good.table[rank].size(); ++i) {
      if (!moves_parameters(good.table[rank][i].kind)) continue;
      Schedule bad = good;
      bad.table[rank].erase(bad.table[rank].begin() + i);
      EXPECT_THROW(check(bad), Error) << "without " << to_string(good.table[rank][i]);
      bad = good;
      bad.table[rank].insert(bad.table[rank].begin() + i, good.table[rank][i]);
      EXPECT_THROW(check(bad), Error) << "twice " << to_string(good.table[rank][i]);
    }
  }
  // A pass in front of its gather, and one behind its release.
  Schedule one = gpipe(1, 1);
  add_gathers(one, 1);
  EXPECT_EQ(to_csv(one), "0UNSHARD,0F0,0B0,0RESHARD\n");
  for (const std::size_t i : {0, 2}) {
    Schedule bad = one;
    std::swap(bad.table[0][i], bad.table[0][i + 1]);
    EXPECT_THROW(check(bad), Error) << to_csv(bad);
  }
  // One rank that gathers beside one that does not: the other has no memory for its parameters.
  Schedule half = good;
  std::erase_if(half.table[1], [](const Action& one) { return moves_parameters(one.kind); });
  EXPECT_THROW(check(half), Error);
  EXPECT_THROW(add_gathers(good, 1), Error);
  Schedule plain = gpipe(2, 2);
  EXPECT_THROW(add_gathers(plain, -1), Error);
}

}  // namespace
}  // namespace shoal::schedule::gathers_test
