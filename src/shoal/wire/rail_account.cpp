#include "shoal/wire/rail_account.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "shoal/base/error.h"

namespace shoal::wire {

void RailAccount::wrote(Claims::Chunk piece) {
  ++written_;
  if (abandoned_) return;
  if (piece.moved) piece.message.reset();
  unreported_.push_back(std::move(piece));
}

std::optional<RailReport> RailAccount::report(std::uint16_t rail) {
  if (state_ != State::kOpen || received_ == told_) return std::nullopt;
  told_ = received_;
  return RailReport{.rail = rail, .connection = connection_, .closed = 0, .pieces = received_};
}

RailReport RailAccount::close(std::uint16_t rail, std::deque<Claims::Chunk> unwritten) {
  state_ = State::kClosing;
  for (Claims::Chunk& chunk : unwritten) {
    if (abandoned_ || chunk.moved) continue;
    unreported_.push_back(std::move(chunk));
  }
  return {.rail = rail, .connection = connection_, .closed = 1, .pieces = received_};
}

std::vector<Claims::Chunk> RailAccount::reported(const RailReport& report, Clock::time_point now) {
  if (report.pieces < reported_ || report.pieces > written_) {
    throw Error(ErrorKind::kData, "receive",
                fmt::format("a report of {} pieces on connection {}, of which {} were written and "
                            "{} reported",
                            report.pieces, report.rail, written_, reported_));
  }
  std::vector<Claims::Chunk> arrived;
  // After drop_all fewer are kept than are reported.
  for (; reported_ < report.pieces; ++reported_) {
    if (unreported_.empty()) continue;
    Claims::Chunk& piece = unreported_.front();
    latency_ = now - piece.claimed;
    if (!piece.is_delivered()) {
      if (piece.copies) piece.copies->delivered = true;
      arrived.push_back(std::move(piece));
    }
    unreported_.pop_front();
    first_waiting_ -= std::min<std::size_t>(first_waiting_, 1);
  }
  if (report.closed != 0 && state_ == State::kClosing) {
    state_ = State::kClosed;
    for (Claims::Chunk& chunk : unreported_)
      if (is_waiting(chunk)) lost_.push_back(std::move(chunk));
    forget_unreported();
  }
  return arrived;
}

std::optional<Duration> RailAccount::latency(Clock::time_point now) const {
  if (!latency_ || unreported_.empty()) return latency_;
  return std::max<Duration>(*latency_, now - unreported_.front().claimed);
}

std::optional<Claims::Chunk> RailAccount::move_late(Clock::time_point now, Duration longest) {
  if (!waits()) return std::nullopt;
  Claims::Chunk& oldest = unreported_[first_waiting()];
  if (!oldest.is_late(now, longest)) return std::nullopt;
  Claims::Chunk copy = oldest.move();
  // The kernel has the bytes.
  oldest.message.reset();
  return copy;
}

std::size_t RailAccount::first_waiting() const {
  while (first_waiting_ < unreported_.size() && !is_waiting(unreported_[first_waiting_]))
    ++first_waiting_;
  return first_waiting_;
}

void RailAccount::forget_unreported() {
  unreported_.clear();
  first_waiting_ = 0;
}

void RailAccount::reopen() {
  state_ = State::kOpen;
  ++connection_;
  written_ = reported_ = received_ = told_ = 0;
  latency_.reset();
}

void RailAccount::drop_all(std::vector<std::shared_ptr<Claims::Message>>& dropped) {
  for (const Claims::Chunk& chunk : unreported_)
    if (chunk.message) dropped.push_back(chunk.message);
  forget_unreported();
}

void RailAccount::adopt(Claims& claims, Stream stream) {
  for (Claims::Chunk& chunk : unreported_)
    if (chunk.message && chunk.stream == stream) claims.copy_body(*chunk.message);
}

void RailAccount::release_all(Claims& claims) {
  for (Claims::Chunk& chunk : unreported_)
    if (chunk.message) claims.release(*chunk.message);
}

}  // namespace shoal::wire
