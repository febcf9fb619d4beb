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
  kFlow,  ///< a FlowMessage
  kRail,  ///< a RailReport
};
/// Control messages overtake everything else.
constexpr int kControlPriority = 1 << 30;

}  // namespace shoal::wire
