#include "shoal/wire/first_rail_account.h"

#include <fmt/format.h>

#include <utility>

#include "shoal/base/error.h"

namespace shoal::wire {

bool FirstRailAccount::is_awaited(Stream stream) {
  return stream != Stream{0, kHeartbeat} && stream != Stream{0, kRail};
}

void FirstRailAccount::wrote(Claims::Chunk chunk) {
  ++written_;
  if (abandoned_) return;
  unreported_bytes_ += cost_of(chunk);
  if (is_awaited(chunk.stream)) ++awaited_;
  unreported_.push_back(std::move(chunk));
}

void FirstRailAccount::received(Stream stream) {
  if (!has_place(stream)) return;
  ++received_;
  if (is_awaited(stream)) urgent_ = true;
}

// Two ranks that report reports to each other would never stop.
std::optional<RailReport> FirstRailAccount::report(bool at_once) {
  if (state_ != State::kOpen || received_ == told_) return std::nullopt;
  if (!urgent_ && !at_once && received_ - told_ < kMostUntold) return std::nullopt;
  return own_report();
}

RailReport FirstRailAccount::own_report() {
  told_ = received_;
  urgent_ = false;
  return {.rail = 0, .connection = connection_, .closed = 0, .pieces = received_};
}

// A report that was queued before the connection was lost, and written on the next one, is older
// than what was said first on that.
void FirstRailAccount::reported(const RailReport& report) {
  if (report.pieces > written_) {
    throw Error(ErrorKind::kData, "receive",
                fmt::format("a report of {} chunks on connection 0, of which {} were written",
                            report.pieces, written_));
  }
  for (; reported_ < report.pieces; ++reported_) {
    if (unreported_.empty()) continue;
    const Claims::Chunk& chunk = unreported_.front();
    unreported_bytes_ -= cost_of(chunk);
    if (is_awaited(chunk.stream)) --awaited_;
    unreported_.pop_front();
  }
}

// While the peer has not said how much it has, nothing more was claimed: then there are none.
void FirstRailAccount::lost(Chunks unwritten) {
  state_ = State::kLost;
  for (Claims::Chunk& chunk : unwritten) unwritten_.push_back(std::move(chunk));
}

RailReport FirstRailAccount::reopen(std::uint8_t connection) {
  state_ = State::kResuming;
  connection_ = connection;
  return own_report();
}

FirstRailAccount::Chunks FirstRailAccount::resume(const RailReport& report) {
  reported(report);
  state_ = State::kOpen;
  Chunks all = std::exchange(unreported_, {});
  for (Claims::Chunk& chunk : unwritten_) all.push_back(std::move(chunk));
  for (Claims::Chunk& chunk : all) chunk.sent = 0;
  unwritten_.clear();
  unreported_bytes_ = 0;
  awaited_ = 0;
  // They count when they are written again.
  written_ = reported_;
  return all;
}

void FirstRailAccount::abandon() {
  abandoned_ = true;
  unreported_.clear();
  unwritten_.clear();
  unreported_bytes_ = 0;
  awaited_ = 0;
}

void FirstRailAccount::drop_all(std::vector<std::shared_ptr<Claims::Message>>& dropped) {
  for (const Claims::Chunk& chunk : unwritten_) dropped.push_back(chunk.message);
  abandon();
}

void FirstRailAccount::adopt(Claims& claims, Stream stream) {
  for (Claims::Chunk& chunk : unwritten_)
    if (chunk.stream == stream) claims.copy_body(*chunk.message);
}

void FirstRailAccount::release_all(Claims& claims) {
  for (Claims::Chunk& chunk : unwritten_) claims.release(*chunk.message);
}

}  // namespace shoal::wire
