#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <tuple>

#include "shoal/schedule/generators.h"
#include "shoal/schedule/schedule_file.h"

namespace shoal::schedule::repeatable_test {
namespace {

std::vector<std::string> texts(const std::vector<Action>& actions, std::size_t count) {
  std::vector<std::string> list;
  for (std::size_t i = 0; i < count; ++i) list.push_back(to_string(actions[i]));
  return list;
}

// By hand: rank 0 runs its three warm-up passes and sends them; rank 2 computes a loss at once.
TEST(Repeatable, OneForwardOneBackwardRepeatsItsWarmUp) {
  const Schedule table = one_forward_one_backward(3, 4);
  const std::vector<std::size_t> counts = repeatable(table);
  ASSERT_EQ(counts.size(), 3u);
  EXPECT_EQ(texts(table.table[0], counts[0]),
            (std::vector<std::string>{"0F0", "0SEND_F0", "0F1", "0SEND_F1", "0F2", "0SEND_F2"}));
  EXPECT_EQ(
      texts(table.table[1], counts[1]),
      (std::vector<std::string>{"1RECV_F0", "1F0", "1SEND_F0", "1RECV_F1", "1F1", "1SEND_F1"}));
  EXPECT_EQ(texts(table.table[2], counts[2]), (std::vector<std::string>{"2RECV_F0"}));
}

// A table as a file may have it: each rank has two of four stages and runs both for one micro-batch
// after the other. Rank 1 computes a loss before it sends what rank 0 runs next.
TEST(Repeatable, EndsInFrontOfWhatIsSentBehindAPart) {
  Schedule table{"by hand", 2, {0, 1, 0, 1}, {{}, {}}};
  for (const int micro_batch : {0, 1}) {
    for (const int stage : {0, 1, 2, 3})
      table.table[stage % 2].push_back({Kind::kForward, stage, micro_batch});
  }
  add_transfers(table);
  const std::vector<std::size_t> counts = repeatable(table);
  EXPECT_EQ(texts(table.table[0], counts[0]),
            (std::vector<std::string>{"0F0", "0SEND_F0", "2RECV_F0", "2F0", "2SEND_F0", "0F1",
                                      "0SEND_F1"}));
  EXPECT_EQ(texts(table.table[1], counts[1]),
            (std::vector<std::string>{"1RECV_F0", "1F0", "1SEND_F0", "3RECV_F0"}));
}

// What a rank receives in its part, its peer sends in its own: otherwise ranks that all stop at the
// end of their parts would wait for each other.
TEST(Repeatable, WhatIsReceivedInItIsSentInIt) {
  for (const std::string& name : schedule_names()) {
    const int chunks = name == "interleaved" || name == "zb-v" || name == "dualpipe-v" ? 2 : 1;
    for (const int ranks : {2, 3, 4, 8}) {
      for (const int micro_batches : {2 * ranks, 3 * ranks}) {
        const Schedule table = make_schedule(name, ranks, chunks, micro_batches);
        const std::vector<std::size_t> counts = repeatable(table);
        std::set<std::tuple<int, int>> sent;
        std::set<std::tuple<int, int>> received;
        for (int rank = 0; rank < ranks; ++rank) {
          ASSERT_LT(counts[rank], table.table[rank].size());
          for (std::size_t i = 0; i < counts[rank]; ++i) {
            const Action& action = table.table[rank][i];
            ASSERT_TRUE(action.kind == Kind::kForward || action.kind == Kind::kSendActivation ||
                        action.kind == Kind::kReceiveActivation)
                << name << " " << to_string(action);
            ASSERT_FALSE(action.kind == Kind::kForward && action.stage + 1 == table.stages());
            if (action.kind == Kind::kSendActivation)
              sent.emplace(action.stage + 1, action.micro_batch);
            if (action.kind == Kind::kReceiveActivation)
              received.emplace(action.stage, action.micro_batch);
          }
        }
        EXPECT_TRUE(std::includes(sent.begin(), sent.end(), received.begin(), received.end()))
            << name << ", " << ranks << " ranks x " << micro_batches;
        EXPECT_FALSE(sent.empty()) << name;
      }
    }
  }
}

}  // namespace
}  // namespace shoal::schedule::repeatable_test
