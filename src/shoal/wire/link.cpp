#include "shoal/wire/link.h"

#include <sys/socket.h>

#include <algorithm>
#include <chrono>
#include <utility>

#include "shoal/base/error.h"

namespace shoal::wire {
namespace {

/// No piece is late before.
constexpr Duration kLeastLate = std::chrono::milliseconds(50);

/// Counts what comes on the first of several rails.
class CountingSink final : public ChunkSink {
 public:
  CountingSink(FirstRailAccount& account, ChunkSink& out) : account_(account), out_(out) {}
  std::byte* place(Stream stream, std::uint64_t total, std::uint64_t offset,
                   std::size_t bytes) override {
    return out_.place(stream, total, offset, bytes);
  }
  void arrived(Stream stream, ReceivedChunk chunk, std::size_t bytes) override {
    account_.received(stream);
    out_.arrived(stream, std::move(chunk), bytes);
  }
  void announced(Stream stream, std::uint64_t total) override {
    account_.received(stream);
    out_.announced(stream, total);
  }

 private:
  FirstRailAccount& account_;
  ChunkSink& out_;
};

}  // namespace

Link::Link(Descriptor socket, std::uint64_t most_bytes, std::shared_ptr<ChunkPool> pool, int rails)
    : Link(std::make_unique<PlainChannel>(std::move(socket)), most_bytes, std::move(pool), rails) {}

Link::Link(std::unique_ptr<Channel> channel, std::uint64_t most_bytes,
           std::shared_ptr<ChunkPool> pool, int rails)
    : most_bytes_(most_bytes),
      pool_(pool ? std::move(pool) : std::make_shared<ChunkPool>(Assembler::kChunkBytes)),
      claims_(rails > 1),
      gathering_(pool_),
      accounts_(static_cast<std::size_t>(rails)),
      first_(rails > 1 ? std::make_unique<FirstRailAccount>() : nullptr),
      rails_(static_cast<std::size_t>(rails)) {
  add_rail(0, std::move(channel));
}

Link::~Link() {
  // Operations may still wait for `released` of what was never sent.
  claims_.release_all();
  for (const auto& rail : rails_)
    if (rail) rail->release_all(claims_);
  for (RailAccount& account : accounts_) account.release_all(claims_);
  if (first_) first_->release_all(claims_);
}

Assembler Link::assembler(int rail) const {
  using Carries = Assembler::Carries;
  if (rails() == 1) return Assembler(most_bytes_, pool_);
  return Assembler(most_bytes_, pool_,
                   rail == 0 ? Carries::kMessagesAndAnnouncements : Carries::kPieces);
}

void Link::add_rail(int rail, Descriptor socket) {
  add_rail(rail, std::make_unique<PlainChannel>(std::move(socket)));
}

void Link::add_rail(int rail, std::unique_ptr<Channel> channel) {
  const auto at = static_cast<std::size_t>(rail);
  RailAccount& account = accounts_[at];
  if (account.state() == RailAccount::State::kClosed) account.reopen();
  rails_[at] =
      std::make_unique<Rail>(std::move(channel), assembler(rail), rail > 0 ? &account : nullptr,
                             rail > 0 ? nullptr : first_.get());
}

// The assembler is a new one: a chunk that was arriving comes again. So would a message of several
// chunks, but what rail 0 carries has one, apart from an error of many words, behind which no rail
// is replaced.
void Link::add_first_rail(std::unique_ptr<Channel> channel, std::uint8_t number) {
  add_rail(0, std::move(channel));
  rails_[0]->send_first(first_->reopen(number));
}

void Link::lose_first_rail() {
  Rail& lost = *rails_[0];
  lost_bytes_sent_ += lost.bytes_sent();
  lost_bytes_received_ += lost.bytes_received();
  first_->lost(lost.take_unwritten());
  rails_[0].reset();
}

void Link::obey_first_rail(const RailReport& report) {
  if (!first_) return;
  if (first_->state() != FirstRailAccount::State::kResuming) return first_->reported(report);
  rails_[0]->resend(first_->resume(report));
}

std::optional<RailReport> Link::report_first_rail(bool at_once) {
  return first_ ? first_->report(at_once) : std::nullopt;
}

bool Link::has_any_rail() const {
  return std::any_of(rails_.begin(), rails_.end(),
                     [](const auto& rail) { return rail != nullptr; });
}

RailReport Link::lose_rail(int rail) {
  const auto at = static_cast<std::size_t>(rail);
  Rail& lost = *rails_[at];
  lost_bytes_sent_ += lost.bytes_sent();
  lost_bytes_received_ += lost.bytes_received();
  // A piece that was arriving is written again, from its beginning.
  if (const auto piece = lost.assembler().arriving_piece())
    gathering_.lose_piece(piece->first, piece->second);
  const RailReport report =
      accounts_[at].close(static_cast<std::uint16_t>(rail), lost.take_unwritten());
  rails_[at].reset();
  return report;
}

RailReport Link::skip_connection(int rail) {
  RailAccount& account = accounts_[static_cast<std::size_t>(rail)];
  if (account.state() == RailAccount::State::kClosed) account.reopen();
  return account.close(static_cast<std::uint16_t>(rail), {});
}

void Link::obey(const RailReport& report) {
  if (report.rail == 0) return obey_first_rail(report);
  RailAccount& account = accounts_[report.rail];
  for (const Claims::Chunk& piece : account.reported(report)) {
    for (const auto& rail : rails_)
      if (rail && piece.copies) rail->give_up(piece.copies);
    claims_.wrote(piece);
  }
  claims_.take_back(account.take_lost());
}

void Link::await_no_reports() {
  for (RailAccount& account : accounts_) account.abandon();
  if (first_) first_->abandon();
}

std::optional<RailReport> Link::report(int rail) {
  return accounts_[static_cast<std::size_t>(rail)].report(static_cast<std::uint16_t>(rail));
}

bool Link::ready() const {
  return std::all_of(rails_.begin(), rails_.end(),
                     [](const auto& rail) { return rail != nullptr; });
}

void Link::send(Stream stream, int priority, Bytes message) {
  send(stream, priority, std::move(message), {}, nullptr);
}

void Link::send(Stream stream, int priority, Bytes head, std::span<const std::byte> body,
                Released released) {
  claims_.send(stream, priority, std::move(head), body, std::move(released));
}

// Each rail writes a piece at a time, so that a message is spread over all that have room. What
// rail 0 announces gives the others work, and a message that is claimed may make room for the next
// one of its stream on rail 0. It goes on while anything is claimed or written: a rail that has
// written the rest of a piece claims the next one, for nobody asks it again while it has room.
bool Link::flush() {
  if (rails_.size() == 1) return flush_only_rail();
  const auto progress = [this] { return claims_.claimed() + bytes_sent(); };
  std::uint64_t before = 0;
  do {
    before = progress();
    for (std::size_t i = 0; i < rails_.size(); ++i) {
      const std::size_t at = i == 0 ? 0 : 1 + (turn_ + i) % (rails_.size() - 1);
      if (!rails_[at]) continue;
      try {
        if (at > 0) {
          rails_[at]->flush_one(claims_, Claims::Kind::kPiece);
        } else if (!rails_[0]->blocked() && !rails_[0]->broken()) {
          rails_[0]->flush(claims_, Claims::Kind::kSmall);
        }
      } catch (const Error& error) {
        rails_[at]->set_write_failure(error.message());
        // Whoever reads this rail meets the break, behind what the peer has sent before. Not every
        // failure to write makes a socket readable, as its end does.
        rails_[at]->set_broken();
        ::shutdown(rails_[at]->fd(), SHUT_RDWR);
      }
    }
    ++turn_;
  } while (before != progress());
  return std::none_of(rails_.begin(), rails_.end(),
                      [](const auto& rail) { return rail && rail->blocked(); });
}

// A rail that waits for reports is at least as slow as the oldest piece says: where all of them
// stand still, none is late.
std::optional<Duration> Link::least_latency(Clock::time_point now) const {
  std::optional<Duration> least;
  for (std::size_t rail = 1; rail < rails_.size(); ++rail) {
    if (!rails_[rail] || rails_[rail]->broken()) continue;
    const auto latency = accounts_[rail].latency(now);
    if (latency && (!least || *latency < *least)) least = latency;
  }
  return least;
}

// With nothing else to send, a copy costs nothing. Otherwise it takes the place of another piece;
// but what is received in order waits for the late one, so that the peer may soon have nothing to
// send.
void Link::send_late_again(Clock::time_point now) {
  const auto latency = least_latency(now);
  if (!latency) return;
  const Duration longest = (claims_.has_pieces() ? 4 : 2) * *latency + kLeastLate;
  std::vector<Claims::Chunk> late;
  for (std::size_t rail = 1; rail < rails_.size(); ++rail) {
    while (auto piece = accounts_[rail].move_late(now, longest)) late.push_back(std::move(*piece));
    if (!rails_[rail]) continue;
    if (auto piece = rails_[rail]->move_late(now, longest)) late.push_back(std::move(*piece));
  }
  sent_again_ += late.size();
  claims_.take_back(std::move(late));
}

// A piece that a rail does not write to its end may be the last one that the peer waits for, when
// all others have been reported.
bool Link::may_have_late() const {
  return awaits_reports() || std::any_of(rails_.begin() + 1, rails_.end(), [](const auto& rail) {
           return rail && rail->writes_piece();
         });
}

bool Link::awaits_reports() const {
  return std::any_of(accounts_.begin(), accounts_.end(),
                     [](const RailAccount& account) { return account.waits(); });
}

bool Link::flush_only_rail() {
  try {
    return rails_[0]->flush(claims_, Claims::Kind::kAny);
  } catch (const Error& error) {
    rails_[0]->set_write_failure(error.message());
    throw;
  }
}

bool Link::finish_sending() {
  bool all = true;
  for (const auto& rail : rails_)
    if (rail) all = rail->finish_sending() && all;
  return all;
}

bool Link::receive(int rail, ChunkSink& sink) {
  Rail& from = *rails_[static_cast<std::size_t>(rail)];
  if (rails_.size() == 1) return from.receive(sink);
  if (rail == 0) {
    Gathering::Messages messages(gathering_, sink);
    CountingSink counting(*first_, messages);
    return from.receive(counting);
  }
  Gathering::Pieces pieces(
      gathering_, sink, accounts_[static_cast<std::size_t>(rail)].received_pieces(),
      [this](std::uint64_t message, std::uint64_t offset) { supersede(message, offset); });
  return from.receive(pieces);
}

// The rest of that piece, where it is still arriving on some rail, must not be written to memory
// that is passed on now.
void Link::supersede(std::uint64_t message, std::uint64_t offset) {
  for (std::size_t rail = 1; rail < rails_.size(); ++rail) {
    if (rails_[rail] && rails_[rail]->assembler().arriving_piece() == std::pair(message, offset))
      rails_[rail]->assembler().supersede_piece();
  }
}

bool Link::receive(const std::function<void(Stream, Bytes)>& message) {
  return rails_[0]->receive(message);
}

// A piece that is arriving in a place that is forgotten is read to its end all the same, elsewhere.
void Link::forget_places(std::optional<Stream> stream) {
  if (rails_[0]) rails_[0]->assembler().forget_places(stream);
  for (std::size_t i = 1; i < rails_.size(); ++i) {
    if (!rails_[i]) continue;
    const auto piece = rails_[i]->assembler().placed_piece();
    if (piece && gathering_.is_placed(piece->first, piece->second, stream))
      rails_[i]->assembler().forget_places();
  }
  gathering_.forget_places(stream);
}

void Link::send_last_words(const Bytes& words) {
  if (words.size() > Assembler::kPieceBytes) return;
  for (std::size_t i = 1; i < rails_.size(); ++i)
    if (rails_[i] && !rails_[i]->broken()) rails_[i]->send_last_words(words);
}

void Link::send_beats() {
  for (std::size_t i = 1; i < rails_.size(); ++i)
    if (rails_[i]) rails_[i]->send_beat();
}

void Link::adopt(Stream stream) {
  claims_.adopt(stream);
  for (const auto& rail : rails_)
    if (rail) rail->adopt(claims_, stream);
  for (RailAccount& account : accounts_) account.adopt(claims_, stream);
  if (first_) first_->adopt(claims_, stream);
}

// Several rails may write pieces of one message: its memory is released when each has its copy.
// Where the first rail is missing it is not replaced any more, and nothing carries the rest.
void Link::drop_all() {
  std::vector<std::shared_ptr<Claims::Message>> dropped;
  for (const auto& rail : rails_)
    if (rail) rail->drop_all(dropped);
  for (RailAccount& account : accounts_) account.drop_all(dropped);
  if (first_) first_->drop_all(dropped);
  for (const auto& message : dropped) claims_.release(*message);
  claims_.drop_all();
  if (!rails_[0]) claims_.abandon();
}

void Link::abandon() {
  for (const auto& rail : rails_)
    if (rail) rail->abandon();
  for (RailAccount& account : accounts_) account.abandon();
  if (first_) first_->abandon();
  claims_.abandon();
}

bool Link::idle() const {
  return !awaits_reports() && !(first_ && first_->waits()) && claims_.idle() &&
         std::all_of(rails_.begin(), rails_.end(),
                     [](const auto& rail) { return !rail || rail->idle(); });
}

bool Link::idle(Stream stream) const {
  return claims_.idle(stream) && std::all_of(rails_.begin(), rails_.end(), [&](const auto& rail) {
           return !rail || rail->idle(stream);
         });
}

std::uint64_t Link::bytes_sent(int rail) const {
  const auto& sender = rails_[static_cast<std::size_t>(rail)];
  return sender ? sender->bytes_sent() : 0;
}

std::uint64_t Link::bytes_sent() const {
  std::uint64_t bytes = lost_bytes_sent_;
  for (int rail = 0; rail < rails(); ++rail) bytes += bytes_sent(rail);
  return bytes;
}

std::uint64_t Link::bytes_received() const {
  std::uint64_t bytes = lost_bytes_received_;
  for (const auto& rail : rails_) bytes += rail ? rail->bytes_received() : 0;
  return bytes;
}

}  // namespace shoal::wire
