#include "shoal/collective/elastic/state_exchange.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "shoal/base/hex.h"

namespace shoal::collective::elastic {
namespace {

/// Parts in which a state is sent, so that none needs buffers of its size.
constexpr std::size_t kPartBytes = 16 << 20;

/// Of an operation: never nothing, which would stand for the time of the group.
Duration time_left(Deadline deadline) {
  return std::max<Duration>(deadline.left(), std::chrono::milliseconds(1));
}

/// Which ranks have the state.
std::vector<std::uint8_t> who_has_it(Communicator& group, bool has_state, Deadline deadline) {
  const std::uint8_t own = has_state ? 1 : 0;
  std::vector<std::uint8_t> all(static_cast<std::size_t>(group.size()));
  group.wait(group.start({.kind = Kind::kAllGather,
                          .type = ElementType::kU8,
                          .buffer = {.input = &own, .output = all.data(), .count = 1},
                          .timeout = time_left(deadline)}));
  return all;
}

/// From rank 0 to the others.
std::vector<std::byte> pass_on(Communicator& group, const StateAccess& state, Deadline deadline) {
  std::vector<std::byte> bytes;
  if (group.rank() == 0) bytes = state.write();
  std::uint64_t size = bytes.size();
  broadcast(group, &size, sizeof size, deadline);
  // Memory grows with what has arrived, not with what was announced.
  for (std::uint64_t at = 0; at < size;) {
    const auto part = static_cast<std::size_t>(std::min<std::uint64_t>(kPartBytes, size - at));
    if (group.rank() != 0) bytes.resize(bytes.size() + part);
    broadcast(group, bytes.data() + at, part, deadline);
    at += part;
  }
  return bytes;
}

bool all_of(const std::vector<std::uint8_t>& flags) {
  return std::all_of(flags.begin(), flags.end(), [](std::uint8_t flag) { return flag == 1; });
}

}  // namespace

std::string short_text(const Digest& digest) { return hex(std::span(digest).first<8>()); }

void broadcast(Communicator& group, void* data, std::size_t bytes, Deadline deadline) {
  group.wait(group.start({.kind = Kind::kBroadcast,
                          .type = ElementType::kU8,
                          .buffer = {.input = data, .output = data, .count = bytes},
                          .peer = 0,
                          .timeout = time_left(deadline)}));
}

Digest StateAccess::sha256(std::span<const std::byte> bytes) { return membership::digest(bytes); }

void exchange_state(Communicator& group, const membership::View& view, bool has_state,
                    const StateAccess& state, const std::function<void(const Error&)>& report,
                    Deadline deadline) {
  const std::vector<std::uint8_t> providers = who_has_it(group, has_state, deadline);
  if (all_of(providers)) return;
  std::string failed;
  for (int provider = 0; provider < group.size(); ++provider) {
    if (providers[static_cast<std::size_t>(provider)] == 0) continue;
    const bool provides = provider == group.rank();
    const auto part = group.split(provides || !has_state ? 0 : -1, provides ? 0 : 1);
    if (part) {
      const std::vector<std::byte> bytes = pass_on(*part, state, deadline);
      const Digest digest = provides ? view.state : state.digest(bytes);
      if (!provides && digest == view.state) {
        state.read(bytes);
        has_state = true;
      } else if (!provides) {
        const std::string name = view.members[static_cast<std::size_t>(provider)].id.text();
        failed += (failed.empty() ? "" : ", ") + name;
        report(Error(ErrorKind::kData, "state",
                     fmt::format("member {} has sent a state with digest {}, and step {} begins "
                                 "with {}",
                                 name, short_text(digest), view.first_step, short_text(view.state)))
                   .at(group.rank(), group.size())
                   .from(provider)
                   .hint("Another member is asked. That one should be started again."));
      }
    }
    if (all_of(who_has_it(group, has_state, deadline))) return;
  }
  if (has_state) {
    throw Error(ErrorKind::kAborted, "state", "a member of the view could be given no right state")
        .at(group.rank(), group.size());
  }
  throw Error(ErrorKind::kData, "state",
              fmt::format("no member of the view of epoch {} has the state with digest {}; wrong "
                          "ones came from: {}",
                          view.epoch, short_text(view.state), failed.empty() ? "nobody" : failed))
      .at(group.rank(), group.size())
      .hint("Do attempts return the digest of the bytes that `write` makes of the new state?");
}

}  // namespace shoal::collective::elastic
