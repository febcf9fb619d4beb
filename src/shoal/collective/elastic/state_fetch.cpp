#include "shoal/collective/elastic/state_fetch.h"

#include <fmt/format.h>

#include <algorithm>
#include <condition_variable>
#include <cstring>
#include <memory>
#include <mutex>
#include <random>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "shoal/collective/elastic/state_exchange.h"
#include "shoal/wire/key_values.h"

namespace shoal::collective::elastic {
namespace {

using Kind = StateMessage::Kind;

constexpr Duration kPause = std::chrono::milliseconds(50);
/// Members that were busy are asked again after so long.
constexpr Duration kBusyPause = std::chrono::milliseconds(500);

Digest random_name() {
  std::random_device random;
  Digest name;
  for (std::byte& byte : name) byte = static_cast<std::byte>(random());
  return name;
}

/// The address that the provider has told.
class AddressOfProvider final : public wire::KeyValues {
 public:
  AddressOfProvider(std::string host, std::string address)
      : host_(std::move(host)), address_(std::move(address)) {}
  void set(const std::string&, const std::string&, Deadline) override {}
  std::string wait(const std::string&, Deadline) override { return address_; }
  std::string address() override { return host_; }

 private:
  const std::string host_;
  const std::string address_;
};

class Fetch {
 public:
  Fetch(LetterCarrier& carrier, const StateAccess& access, const FetchOptions& options,
        Deadline deadline)
      : carrier_(carrier), access_(access), options_(options), deadline_(deadline) {
    carrier_.when_state_message(
        [this](const MemberId& from, const StateMessage& message) { received(from, message); });
  }
  ~Fetch() { carrier_.when_state_message(nullptr); }
  Fetch(const Fetch&) = delete;
  Fetch& operator=(const Fetch&) = delete;

  std::optional<FetchedState> run() {
    while (!deadline_.passed()) {
      options_.may_go_on();
      const std::optional<MemberId> member = next_member();
      if (!member && is_hopeless()) return std::nullopt;
      if (!member) {
        pause();
        continue;
      }
      const std::optional<StateMessage> answer = ask(*member);
      if (answer && answer->kind == Kind::kNone) return std::nullopt;
      if (answer && answer->kind == Kind::kBusy) {
        busy_.insert(*member);
        continue;
      }
      given_up_.insert(*member);
      if (!answer) {
        report(*member, ErrorKind::kTimeout, "it does not answer");
        continue;
      }
      if (auto state = take_from(*member, answer->text)) return state;
      if (is_stale_) return std::nullopt;
    }
    return std::nullopt;
  }

 private:
  /// Members are asked in an order that differs from joiner to joiner, so that they share the work.
  std::optional<MemberId> next_member() const {
    const std::optional<View> view = carrier_.known_view();
    if (!view) return std::nullopt;
    const std::size_t count = view->members.size();
    const auto first = std::to_integer<std::size_t>(carrier_.self().bytes[0]);
    for (std::size_t i = 0; i < count; ++i) {
      const MemberId& id = view->members[(first + i) % count].id;
      if (!given_up_.contains(id) && !busy_.contains(id) && id != carrier_.self()) return id;
    }
    return std::nullopt;
  }

  /// Returns true where members are known and none of them is worth another question.
  bool is_hopeless() const { return busy_.empty() && carrier_.known_view().has_value(); }

  // Nobody is known yet, or all are busy. Where all are, they are asked at once to give the state
  // behind their step, and that once: later one of them may wait in the next step for another that
  // computes and could give it.
  void pause() {
    const bool all_are_busy = !busy_.empty();
    busy_.clear();
    waits_for_a_step_ = all_are_busy && !waits_for_a_step_;
    if (waits_for_a_step_) return;
    std::unique_lock lock(mutex_);
    changed_.wait_for(lock,
                      std::min<Duration>(all_are_busy ? kBusyPause : kPause, deadline_.left()));
  }

  void received(const MemberId& from, const StateMessage& message) {
    const std::lock_guard lock(mutex_);
    if (StateMessage::asks(message.kind) || from != asked_ || message.stream != stream_) return;
    answer_ = message;
    changed_.notify_all();
  }

  /// Returns the answer of a member; nothing where there is none in `answer_time`.
  std::optional<StateMessage> ask(const MemberId& member) {
    std::unique_lock lock(mutex_);
    asked_ = member;
    stream_ = random_name();
    answer_.reset();
    const Duration repeat = carrier_.options().membership.repeat;
    const Deadline end = Deadline::in(std::min(options_.answer_time, deadline_.left()));
    while (!answer_ && !end.passed()) {
      carrier_.send(
          member, {.kind = waits_for_a_step_ ? Kind::kAskAndWait : Kind::kAsk, .stream = stream_});
      changed_.wait_for(lock, std::min(repeat, end.left()), [&] { return answer_.has_value(); });
      lock.unlock();
      options_.may_go_on();
      lock.lock();
    }
    return answer_;
  }

  std::optional<FetchedState> take_from(const MemberId& member, const std::string& address) {
    std::optional<ReceivedState> state;
    try {
      state = receive_from(address);
    } catch (const Error& error) {
      // The reason may be that this member itself has ended, which throws here.
      options_.may_go_on();
      report(member, error.kind(), error.message());
      return std::nullopt;
    }
    is_stale_ = !state;
    if (is_stale_) return std::nullopt;
    const Digest digest = access_.digest(state->bytes);
    if (digest == state->place.state) return FetchedState{member, std::move(*state)};
    report(member, ErrorKind::kData,
           fmt::format("it has sent a state with digest {}, and step {} begins with {}",
                       short_text(digest), state->place.step, short_text(state->place.state)));
    return std::nullopt;
  }

  std::optional<ReceivedState> receive_from(const std::string& address) {
    AddressOfProvider keys(carrier_.options().host, address);
    const auto transport = std::make_shared<wire::TcpTransport>(
        stream_options(carrier_, stream_, options_.world, options_.may_go_on), keys, 1, 2,
        Deadline::in(std::min(options_.meeting_timeout, deadline_.left())));
    TcpCommunicator pair(transport, {.timeout = options_.world.timeout});
    return receive_state(pair, deadline_, options_.may_go_on);
  }

  void report(const MemberId& member, ErrorKind kind, const std::string& what) const {
    options_.on_fault(Error(kind, "state",
                            fmt::format("joiner {} gets no state from member {}: {}",
                                        carrier_.self().text(), member.text(), what))
                          .hint(kind == ErrorKind::kData
                                    ? "Another member is asked. That one should be started again."
                                    : "Another member is asked."));
  }

  LetterCarrier& carrier_;
  const StateAccess& access_;
  const FetchOptions& options_;
  const Deadline deadline_;
  std::set<MemberId> given_up_;
  std::set<MemberId> busy_;
  bool waits_for_a_step_ = false;
  bool is_stale_ = false;
  std::mutex mutex_;  ///< guards what follows, which the carrier's thread reads and writes too
  std::condition_variable changed_;
  MemberId asked_;
  Digest stream_{};
  std::optional<StateMessage> answer_;
};

}  // namespace

std::optional<FetchedState> fetch_state(LetterCarrier& carrier, const StateAccess& access,
                                        const FetchOptions& options, Deadline deadline) {
  return Fetch(carrier, access, options, deadline).run();
}

}  // namespace shoal::collective::elastic
