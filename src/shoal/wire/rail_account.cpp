#include "shoal/wire/rail_account.h"

#include <fmt/format.h>

#include <utility>

#include "shoal/base/error.h"

namespace shoal::wire {

void RailAccount::wrote(Claims::Chunk piece) {
  ++written_;
  if (abandoned_) return;
  unreported_.push_back(std::move(piece));
}

std::optional<RailReport> RailAccount::report(std::uint16_t rail) {
  if (state_ != State::kOpen || received_ == told_) return std::nullopt;
  told_ = received_;
  return RailReport{.rail = rail, .connection = connection_, .closed = 0, .pieces = received_};
}

RailReport RailAccount::close(std::uint16_t rail, std::deque<Claims::Chunk> unwritten) {
  state_ = State::kClosing;
  for (Claims::Chunk& chunk : unwritten)
    if (!abandoned_) unreported_.push_back(std::move(chunk));
  return {.rail = rail, .connection = connection_, .closed = 1, .pieces = received_};
}

std::vector<Claims::Chunk> RailAccount::reported(const RailReport& report) {
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
    arrived.push_back(std::move(unreported_.front()));
    unreported_.pop_front();
  }
  if (report.closed != 0 && state_ == State::kClosing) {
    state_ = State::kClosed;
    for (Claims::Chunk& chunk : unreported_) lost_.push_back(std::move(chunk));
    unreported_.clear();
  }
  return arrived;
}

void RailAccount::reopen() {
  state_ = State::kOpen;
  ++connection_;
  written_ = reported_ = received_ = told_ = 0;
}

void RailAccount::drop_all(std::vector<std::shared_ptr<Claims::Message>>& dropped) {
  for (const Claims::Chunk& chunk : unreported_) dropped.push_back(chunk.message);
  unreported_.clear();
}

void RailAccount::adopt(Claims& claims, Stream stream) {
  for (Claims::Chunk& chunk : unreported_)
    if (chunk.stream == stream) claims.copy_body(*chunk.message);
}

void RailAccount::release_all(Claims& claims) {
  for (Claims::Chunk& chunk : unreported_) claims.release(*chunk.message);
}

}  // namespace shoal::wire
