// Members over TCP, as processes: they have the same bits, with a codec those of threads that share
// memory, and in streaming each goes on while the others have not begun.
#include <gtest/gtest.h>

#include "shoal/optim/synchronisation.h"
#include "tests/comm/rank_processes.h"
#include "tests/optim/low_communication/quadratic_members.h"

namespace shoal::optim::over_tcp_test {
namespace {

using collective::Codec;

constexpr std::int64_t kSteps = 24;

SynchronisationOptions options_of(Codec codec, bool streams) {
  SynchronisationOptions options{.every = 6, .outer = {}};
  options.outer.coding = {.codec = codec, .key = Key(1)};
  if (streams) options.delay = 2, options.mix = 0.5;
  return options;
}

/// Trains a member, and returns what it ends with.
std::vector<float> train(const comm::Group& group, const SynchronisationOptions& options) {
  const Member member(group.rank());
  Synchronisation members(even_fragments(member.parameters, options.delay > 0 ? 3 : 1), group,
                          options);
  for (std::int64_t step = 1; step <= kSteps; ++step) {
    member.descend(0.1);
    members.after_step(step);
  }
  members.take_anchors();
  return member.values();
}

bool same_as_threads(const comm::Group& group, const SynchronisationOptions& options,
                     const std::vector<float>& found) {
  std::vector<float> expected;
  if (group.rank() == 0) {
    comm::run_on_threads(threads(group.size()), [&](const comm::Group& among_threads) {
      const std::vector<float> values = train(among_threads, options);
      if (among_threads.rank() == 0) expected = values;
    });
  }
  return group.rank() != 0 || expected == found;
}

TEST(LowCommunicationOverTcp, MembersHaveTheSameBits) {
  for (const int ranks : {2, 3, 4}) {
    EXPECT_TRUE(comm::on_processes(ranks, "", [](const comm::Group& group) {
      bool good = true;
      for (const bool streams : {false, true}) {
        for (const Codec codec :
             {Codec::kNone, Codec::kBF16, Codec::kF8E4M3, Codec::kI8, Codec::kI4, Codec::kE3M0}) {
          const SynchronisationOptions options = options_of(codec, streams);
          const std::vector<float> found = train(group, options);
          good = good && all_have(group, found);
          // Without a codec the order of a sum is that of the transport's algorithm.
          if (codec != Codec::kNone) good = good && same_as_threads(group, options, found);
        }
      }
      return good;
    })) << ranks;
  }
}

}  // namespace
}  // namespace shoal::optim::over_tcp_test
