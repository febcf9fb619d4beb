// This file carries messages about the state between members and joiners that are in no view yet.
#include <fmt/format.h>

#include <algorithm>
#include <span>
#include <utility>

#include "shoal/collective/elastic/letter_carrier.h"
#include "shoal/wire/plain_message.h"

namespace shoal::collective::elastic {
namespace {

using membership::Letter;

/// The beginning of a message. Behind it stand the text, or the letter with which a joiner asks to
/// be let in: nobody gets the state who would be refused.
struct Header {
  StateMessage::Kind kind;
  Digest stream;
};
constexpr std::size_t kMostTextBytes = 1024;

[[noreturn]] void refuse(const MemberId& from, const std::string& what) {
  throw Error(ErrorKind::kData, "state", fmt::format("{} has sent {}", from.text(), what));
}

/// Reads the wish to join of `from`.
membership::Join join_in(const MemberId& from, std::span<const std::byte> bytes) {
  const Letter letter = membership::decode_letter(bytes);
  const auto* join = std::get_if<membership::Join>(&letter.body);
  if (!join || join->who.id != from) refuse(from, "a question for the state without its own wish");
  return *join;
}

}  // namespace

void LetterCarrier::send(const MemberId& to, StateMessage message) {
  {
    const std::lock_guard lock(mutex_);
    state_messages_.emplace_back(to, std::move(message));
  }
  loop_.wake();
}

void LetterCarrier::when_state_message(
    std::function<void(const MemberId& from, const StateMessage& message)> received) {
  const std::lock_guard lock(state_mutex_);
  on_state_message_ = std::move(received);
}

void LetterCarrier::send_state_message(const MemberId& to, const StateMessage& message) {
  wire::Bytes bytes = wire::encode_plain(Header{.kind = message.kind, .stream = message.stream});
  wire::Bytes rest;
  if (StateMessage::asks(message.kind)) {
    rest = membership::encode(
        Letter{.from = self(), .to = to, .body = membership_->own_join(), .hop = to});
  } else {
    const auto* text = reinterpret_cast<const std::byte*>(message.text.data());
    rest.assign(text, text + std::min(message.text.size(), kMostTextBytes));
  }
  bytes.insert(bytes.end(), rest.begin(), rest.end());
  links_->send(to, kStateKind, std::move(bytes));
}

void LetterCarrier::receive_state_message(const MemberId& from, const wire::Bytes& bytes) {
  const std::span<const std::byte> all(bytes);
  const std::size_t head_bytes = std::min(all.size(), sizeof(Header));
  const auto header = wire::decode_plain<Header>(all.first(head_bytes));
  if (!header) refuse(from, "half a message about the state");
  const std::span<const std::byte> rest = all.subspan(head_bytes);
  StateMessage message{.kind = header->kind, .stream = header->stream};
  switch (message.kind) {
    case StateMessage::Kind::kAsk:
    case StateMessage::Kind::kAskAndWait:
      return answer_state_question(from, message, join_in(from, rest));
    case StateMessage::Kind::kMeet:
    case StateMessage::Kind::kBusy:
    case StateMessage::Kind::kNone:
      if (rest.size() > kMostTextBytes) refuse(from, "too long a text about the state");
      message.text.assign(reinterpret_cast<const char*>(rest.data()), rest.size());
      pass_state_message(from, message);
      return;
  }
  refuse(from, "a message about the state of an unknown kind");
}

void LetterCarrier::answer_state_question(const MemberId& from, const StateMessage& question,
                                          const membership::Join& join) {
  using enum StateMessage::Kind;
  if (const auto refused = membership_->refuses(join)) {
    return send_state_message(from,
                              {.kind = kNone, .stream = question.stream, .text = refused->why});
  }
  if (!membership_->view() || !pass_state_message(from, question))
    send_state_message(from, {.kind = kBusy, .stream = question.stream});
}

// Returns false where nobody wants to know it.
bool LetterCarrier::pass_state_message(const MemberId& from, const StateMessage& message) {
  const std::lock_guard lock(state_mutex_);
  if (on_state_message_) on_state_message_(from, message);
  return static_cast<bool>(on_state_message_);
}

std::optional<View> LetterCarrier::known_view() const {
  const std::lock_guard lock(mutex_);
  return status_.view ? status_.view : seen_view_;
}

}  // namespace shoal::collective::elastic
