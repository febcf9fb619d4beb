#include "shoal/collective/elastic/state_provider.h"

#include <fmt/format.h>

#include <algorithm>
#include <exception>
#include <utility>

#include "shoal/base/check.h"
#include "shoal/collective/elastic/state_stream.h"
#include "shoal/wire/key_values.h"

namespace shoal::collective::elastic {
namespace {

/// Faults that nobody has asked for; the newest ones are dropped.
constexpr std::size_t kMostFaults = 64;
constexpr std::size_t kMostPutOff = 256;

}  // namespace

/// Tells the joiner where this member listens. Rank 0 asks for no address.
class StateProvider::Keys final : public wire::KeyValues {
 public:
  Keys(StateProvider& provider, Stream& stream) : provider_(provider), stream_(stream) {}

  void set(const std::string&, const std::string& value, Deadline) override {
    provider_.tell_address(stream_, value);
  }
  std::string wait(const std::string& key, Deadline) override {
    throw Error(ErrorKind::kInternal, "state", fmt::format("nobody tells '{}'", key));
  }
  std::string address() override { return provider_.carrier_.options().host; }

 private:
  StateProvider& provider_;
  Stream& stream_;
};

StateProvider::StateProvider(LetterCarrier& carrier, std::shared_ptr<SteadyState> state,
                             Options options)
    : carrier_(carrier), state_(std::move(state)), options_(std::move(options)) {
  carrier_.when_state_message(
      [this](const MemberId& from, const StateMessage& message) { received(from, message); });
}

StateProvider::~StateProvider() {
  // From here on the carrier's thread calls this no more.
  carrier_.when_state_message(nullptr);
  stop_ = true;
  {
    const std::lock_guard lock(mutex_);
    for (const auto& stream : streams_) {
      if (stream->transport)
        stream->transport->abort(Error(ErrorKind::kAborted, "state", "the provider stops"));
    }
  }
  for (const auto& stream : streams_) stream->thread.join();
}

std::vector<Error> StateProvider::take_faults() {
  const std::lock_guard lock(mutex_);
  return std::exchange(faults_, {});
}

// A question is repeated until it is answered.
void StateProvider::received(const MemberId& from, const StateMessage& message) {
  if (!StateMessage::asks(message.kind)) return;
  const std::lock_guard lock(mutex_);
  reap();
  const auto known = std::find_if(streams_.begin(), streams_.end(), [&](const auto& stream) {
    return stream->to == from && stream->name == message.stream;
  });
  if (known == streams_.end()) {
    // The joiner has that answer, or will have it, and would leave a stream of that name alone.
    const auto answered = put_off_.find(from);
    const bool again = answered != put_off_.end() && answered->second == message.stream;
    return again ? put_off(from, message.stream) : begin(from, message);
  }
  if (const std::string& address = (*known)->address; !address.empty()) {
    carrier_.send(from,
                  {.kind = StateMessage::Kind::kMeet, .stream = message.stream, .text = address});
  }
}

// A member that attempts a step may wait for one that still computes: the joiner asks that one.
// Where the network takes most of a round, none computes when it is asked.
void StateProvider::begin(const MemberId& to, const StateMessage& question) {
  const bool waits = question.kind == StateMessage::Kind::kAskAndWait;
  if (streams_.size() < kMostStreams && (waits || !state_->attempts_a_step())) {
    auto stream = std::make_unique<Stream>();
    stream->to = to;
    stream->name = question.stream;
    try {
      stream->thread = std::thread([this, &stream = *stream] { serve(stream); });
      streams_.push_back(std::move(stream));
      return;
    } catch (const std::system_error&) {
      // There is no thread to be had.
    }
  }
  put_off(to, question.stream);
}

void StateProvider::put_off(const MemberId& joiner, const Digest& stream) {
  // Joiners that have gone are forgotten with all others, which costs nothing but such a stream.
  if (put_off_.size() >= kMostPutOff) put_off_.clear();
  put_off_[joiner] = stream;
  carrier_.send(joiner, {.kind = StateMessage::Kind::kBusy, .stream = stream});
}

void StateProvider::reap() {
  std::erase_if(streams_, [](const auto& stream) {
    if (!stream->done) return false;
    stream->thread.join();
    return true;
  });
}

void StateProvider::tell_address(Stream& stream, const std::string& address) {
  const std::lock_guard lock(mutex_);
  stream.address = address;
  carrier_.send(stream.to,
                {.kind = StateMessage::Kind::kMeet, .stream = stream.name, .text = address});
}

void StateProvider::check() const {
  if (stop_) throw Error(ErrorKind::kAborted, "state", "the provider stops");
  if (const auto ended = carrier_.status().ended) throw Error(*ended);
}

void StateProvider::serve(Stream& stream) {
  const auto note = [&](ErrorKind kind, const std::string& what) {
    const std::lock_guard lock(mutex_);
    if (stop_ || faults_.size() == kMostFaults) return;
    faults_.push_back(Error(kind, "state",
                            fmt::format("the stream of the state from member {} to joiner {} has "
                                        "ended: {}",
                                        carrier_.self().text(), stream.to.text(), what)));
  };
  try {
    give(stream);
  } catch (const Error& error) {
    note(error.kind(), error.message());
  } catch (const std::exception& error) {
    note(ErrorKind::kAborted, error.what());
  }
  stream.done = true;
}

void StateProvider::give(Stream& stream) {
  const auto may_go_on = [this] { check(); };
  Keys keys(*this, stream);
  const auto transport = std::make_shared<wire::TcpTransport>(
      stream_options(carrier_, stream.name, options_.world, may_go_on), keys, 0, 2,
      Deadline::in(options_.meeting_timeout));
  const auto offer = [&](wire::TcpTransport* abortable) {
    const std::lock_guard lock(mutex_);
    stream.transport = abortable;
  };
  offer(transport.get());
  try {
    check();
    TcpCommunicator pair(transport, {.timeout = options_.world.timeout});
    send_state(pair, *state_,
               {.deadline = Deadline::in(options_.stream_timeout),
                .bytes_per_second = options_.bytes_per_second,
                .may_go_on = may_go_on});
  } catch (const std::exception& error) {
    // The joiner learns why, and asks another member.
    transport->abort(Error(ErrorKind::kAborted, "state", error.what()));
    offer(nullptr);
    throw;
  }
  offer(nullptr);
}

}  // namespace shoal::collective::elastic
