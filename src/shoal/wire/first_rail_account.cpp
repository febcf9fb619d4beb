#include "shoal/wire/first_rail_account.h"

#include <fmt/format.h>

#include <utility>

#include "shoal/base/error.h"

namespace shoal::wire {
namespace {

/// Of connections that follow the first one.
constexpr int kNumbers = 255;

}  // namespace

bool FirstRailAccount::is_awaited(Stream stream) {
  return stream != Stream{0, kHeartbeat} && stream != Stream{0, kRail};
}

std::uint8_t FirstRailAccount::next_connection() const {
  return static_cast<std::uint8_t>(connection_ == kNumbers ? 1 : connection_ + 1);
}

// Of two numbers the one is later that is less than half of the way around ahead of the other.
bool FirstRailAccount::may_follow(std::uint8_t number) const {
  if (number == 0) return false;
  const int ahead = connection_ == 0 ? number : (number - connection_ + kNumbers) % kNumbers;
  return ahead <= kNumbers / 2 && (ahead > 0 || state_ == State::kLost);
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
  if (abandoned_) return;
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
  reported_when_lost_ = reported_;
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
  if (abandoned_) return {};
  Chunks all = std::exchange(unreported_, {});
  for (Claims::Chunk& chunk : unwritten_) all.push_back(std::move(chunk));
  for (Claims::Chunk& chunk : all) chunk.sent = 0;
  sent_again_ = !all.empty();
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
