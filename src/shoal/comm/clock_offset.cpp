#include "shoal/comm/clock_offset.h"

#include <ATen/ops/empty.h>
#include <fmt/format.h>

#include <cstdlib>
#include <functional>
#include <string>

#include "shoal/base/running_kernel.h"

namespace shoal::comm {
namespace {

std::int64_t now() { return Clock::now().time_since_epoch().count(); }

/// No other message of a step has these tags, which end the range of positive ints that MPI takes.
constexpr std::uint32_t kQuestion = 0x7ffffffe;
constexpr std::uint32_t kAnswer = 0x7fffffff;

bool is_one(std::int64_t own, std::int64_t other) { return own != 0 && own == other; }

}  // namespace

ClockOffset offset_of_round_trip(std::int64_t sent, std::int64_t peer_received,
                                 std::int64_t peer_sent, std::int64_t received) {
  // A message takes an unknown part of the time on the way: the middle is wrong by half at most.
  const std::int64_t on_the_way = (received - sent) - (peer_sent - peer_received);
  return {.at_ns = sent + (received - sent) / 2,
          .offset_ns = ((peer_received - sent) + (peer_sent - received)) / 2,
          .error_ns = on_the_way / 2 + 1};
}

std::int64_t name_of_clock() {
  const std::string kernel = running_kernel();
  // Kernels before 5.6 have no namespaces of times; all have those of processes, unless this /proc
  // is that of others.
  if (kernel.empty() || namespace_of_this_process("pid") == 0) return 0;
  const std::string name = fmt::format("{}/{}", kernel, namespace_of_this_process("time"));
  return static_cast<std::int64_t>(std::hash<std::string>()(name));
}

std::vector<ClockOffset> measure_clock_offsets(const Group& group, std::int64_t clock, int rounds) {
  const at::Tensor question = at::empty({1}, at::kLong);
  const at::Tensor answer = at::empty({3}, at::kLong);
  auto* asked = question.data_ptr<std::int64_t>();
  auto* times = answer.data_ptr<std::int64_t>();
  if (group.rank() > 0) {
    bool is_same = false;
    for (int round = 0; round < rounds && !is_same; ++round) {
      group.recv(question, 0, kQuestion);
      is_same = is_one(clock, *asked);
      times[0] = now();
      times[1] = now();
      times[2] = clock;
      group.send(answer, 0, kAnswer);
    }
    return {};
  }
  std::vector<ClockOffset> offsets{{.at_ns = now()}};
  for (int rank = 1; rank < group.size(); ++rank) {
    ClockOffset best;
    bool is_same = false;
    for (int round = 0; round < rounds && !is_same; ++round) {
      *asked = clock;
      const std::int64_t sent = now();
      group.send(question, rank, kQuestion);
      group.recv(answer, rank, kAnswer);
      const ClockOffset found = offset_of_round_trip(sent, times[0], times[1], now());
      if (round == 0 || found.error_ns < best.error_ns) best = found;
      is_same = is_one(clock, times[2]);
    }
    // A round trip on a busy host takes milliseconds, and says less than what is known. It says
    // more where two machines were cloned from one, which keep its name.
    if (is_same && std::abs(best.offset_ns) <= best.error_ns) best = {.at_ns = best.at_ns};
    offsets.push_back(best);
  }
  return offsets;
}

std::int64_t offset_at(const ClockOffset& before, const ClockOffset& after, std::int64_t time_ns) {
  if (after.at_ns <= before.at_ns) return before.offset_ns;
  const double part =
      static_cast<double>(time_ns - before.at_ns) / static_cast<double>(after.at_ns - before.at_ns);
  return before.offset_ns +
         static_cast<std::int64_t>(part * static_cast<double>(after.offset_ns - before.offset_ns));
}

}  // namespace shoal::comm
