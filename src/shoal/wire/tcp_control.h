#pragma once

#include <cstdint>

namespace shoal::wire {

/// Messages of TcpTransport itself travel on streams {0, TcpControl}.
enum TcpControl : std::uint64_t {
  kHeartbeat = 1,
  kAbort,
  kGoodbye,
  kQuestion,
  kAnswer,
  kFlow,       ///< a FlowMessage
  kRail,       ///< a RailReport of a rail other than the first
  kFirstRail,  ///< a RailReport of rail 0, see FirstRailAccount
  kListener,   ///< where the sender may be called, see tell_listener
};
/// Control messages overtake everything else.
constexpr int kControlPriority = 1 << 30;

}  // namespace shoal::wire
