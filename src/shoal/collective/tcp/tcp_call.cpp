#include "shoal/collective/tcp/tcp_call.h"

#include <fmt/format.h>

#include <bit>
#include <cstring>

namespace shoal::collective {

bool must_round_once(const Operation& o) {
  const bool exact = o.reduction == Reduction::kMin || o.reduction == Reduction::kMax;
  return reduces(o.kind) && is_floating(o.type) && size_of(o.type) < 4 && !exact;
}

bool must_fold_once(const Operation& o) {
  return must_round_once(o) || (reduces(o.kind) && (o.reduction == Reduction::kAverage ||
                                                    o.reduction == Reduction::kPremulSum));
}

TcpCall TcpCall::of(const Operation& o, Algorithm algorithm) {
  // Two ranks compare these bytes, so what may differ between them stays out: a send and its
  // receive are one kind, and a field without meaning for the kind has a fixed value.
  const bool coded = o.coding.codec != Codec::kNone;
  const double scale = o.reduction == Reduction::kPremulSum ? o.scale : 1;
  return {.kind = static_cast<std::uint8_t>(point_to_point(o.kind) ? Kind::kSend : o.kind),
          .type = static_cast<std::uint8_t>(o.type),
          .reduction = static_cast<std::uint8_t>(reduces(o.kind) ? o.reduction : Reduction::kSum),
          .algorithm = static_cast<std::uint8_t>(algorithm),
          .peer = has_root(o.kind) ? o.peer : -1,
          .count = o.send_counts.empty() ? o.buffer.count : 0,
          .scale_or_key = coded ? o.coding.key.value() : std::bit_cast<std::uint64_t>(scale),
          .tag = point_to_point(o.kind) ? 0 : o.tag,
          .per_rank_counts = static_cast<std::uint8_t>(o.send_counts.empty() ? 0 : 1),
          .codec = static_cast<std::uint8_t>(o.coding.codec),
          .block = static_cast<std::uint16_t>(coded ? o.coding.block : 0),
          .stochastic = static_cast<std::uint16_t>(coded && o.coding.stochastic ? 1 : 0)};
}

TcpCall TcpCall::of_message(std::uint64_t elements) const {
  TcpCall call = *this;
  if (per_rank_counts != 0) call.count = elements;
  return call;
}

void TcpCall::write(std::byte* to) const {
  std::memset(to, 0, kBytes);
  std::memcpy(to, this, sizeof *this);
}

TcpCall TcpCall::read(const std::byte* from) {
  TcpCall call;
  std::memcpy(&call, from, sizeof call);
  return call;
}

std::string TcpCall::text() const {
  // The bytes may come from a broken peer.
  if (type > static_cast<std::uint8_t>(ElementType::kC128)) return "an unknown call";
  const auto k = static_cast<Kind>(kind);
  std::string text = name(k);
  if (reduces(k)) text += fmt::format(" by {}", name(static_cast<Reduction>(reduction)));
  text += per_rank_counts != 0
              ? fmt::format(" of {} with per-rank counts", name(static_cast<ElementType>(type)))
              : fmt::format(" of {} x {}", count, name(static_cast<ElementType>(type)));
  if (peer >= 0) text += fmt::format(" with root {}", peer);
  if (codec != 0) {
    text += fmt::format(" in {}{}, blocks of {}, key {:x}", name(static_cast<Codec>(codec)),
                        stochastic != 0 ? "" : " to the nearest", +block, scale_or_key);
  }
  if (tag > 0) text += fmt::format(" with label {}", tag);
  return text + fmt::format(" ({})", name(static_cast<Algorithm>(algorithm)));
}

}  // namespace shoal::collective
