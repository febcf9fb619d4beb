// A LetterCarrier receives letters, and the texts that the members of a view tell each other.
#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "shoal/collective/elastic/letter_carrier.h"
#include "shoal/collective/membership/fields.h"

namespace shoal::collective::elastic {
namespace {

using membership::FieldReader;
using membership::FieldWriter;
using membership::Letter;

constexpr std::uint64_t kLetterKind = 1;
constexpr std::uint64_t kTextKind = 2;
constexpr std::uint64_t kQuestionKind = 3;
/// The first message on a connection: whether its sender is in a view.
constexpr std::uint64_t kStandingKind = 4;
// kStateKind is 5.
/// A member keeps so many texts of another one in a view, each of so many bytes.
constexpr std::size_t kMostTexts = 16;
constexpr std::size_t kMostTextBytes = 1024;
/// A member remembers so many joiners at a time.
constexpr std::size_t kMostJoiners = 4096;

[[noreturn]] void refuse(const MemberId& from, const std::string& what) {
  throw Error(ErrorKind::kData, "membership", fmt::format("{} has sent {}", from.text(), what));
}

/// The view that a letter carries to those that are in none yet.
const View* view_in(const Letter& letter) {
  if (const auto* start = std::get_if<membership::Start>(&letter.body)) return &start->view;
  if (const auto* hold = std::get_if<membership::Hold>(&letter.body)) return &hold->view;
  return nullptr;
}

}  // namespace

void LetterCarrier::received(const MemberId& from, std::uint64_t kind, const wire::Bytes& bytes) {
  switch (kind) {
    case kLetterKind:
      return receive_letter(from, bytes);
    case kTextKind:
      return receive_text(from, bytes);
    case kQuestionKind:
      return answer_question(from, bytes);
    case kStandingKind:
      return receive_standing(from, bytes);
    case kStateKind:
      return receive_state_message(from, bytes);
    default:
      refuse(from, fmt::format("a message of the unknown kind {}", kind));
  }
}

void LetterCarrier::send(const Letter& letter) {
  links_->send(letter.hop, kLetterKind, membership::encode(letter));
}

// TLS proves `from`; without it the id is believed. A member may pass on letters of another one.
void LetterCarrier::receive_letter(const MemberId& from, const wire::Bytes& bytes) {
  const Letter letter = membership::decode_letter(bytes);
  if (letter.from != from && !letter.relayed)
    refuse(from, fmt::format("a letter of {}", letter.from.text()));
  if (letter.to != self() && !letter.relayed)
    refuse(from, fmt::format("a letter for {}", letter.to.text()));
  // Whoever asks to join says where it is reached; and a joiner learns whom it may ask.
  if (const auto* join = std::get_if<membership::Join>(&letter.body); join && !letter.relayed) {
    if (join->who.id != from) refuse(from, "a wish to join of " + join->who.id.text());
    if (joiners_.size() < kMostJoiners || joiners_.contains(from)) joiners_[from] = Clock::now();
    links_->know(from, join->who.endpoints);
  }
  const View* const view = view_in(letter);
  if (view && !membership_->view()) {
    know(*view);
    const std::lock_guard lock(mutex_);
    seen_view_ = *view;
  }
  handle(membership::Received{letter});
}

void LetterCarrier::receive_text(const MemberId& from, const wire::Bytes& bytes) {
  FieldReader reader("a text", bytes);
  Digest view{};
  std::string key;
  std::string value;
  reader.field("view", view);
  reader.field("key", key);
  reader.field("value", value);
  reader.end();
  if (key.size() > kMostTextBytes || value.size() > kMostTextBytes) refuse(from, "too long a text");
  const std::lock_guard lock(mutex_);
  // One of another view comes early or late: it is asked for when it is missed.
  if (view != view_digest_ || !status_.view || !status_.view->has_member(from)) return;
  auto& texts = texts_[from];
  if (texts.size() >= kMostTexts && !texts.contains(key)) return;
  texts[key] = value;
  changed_.notify_all();
}

void LetterCarrier::answer_question(const MemberId& from, const wire::Bytes& bytes) {
  FieldReader reader("a question", bytes);
  Digest view{};
  reader.field("view", view);
  reader.end();
  {
    const std::lock_guard lock(mutex_);
    if (view != view_digest_) return;
  }
  send_texts(from);
}

void LetterCarrier::send_standing(const MemberId& to) {
  FieldWriter writer;
  writer.field("in_view", membership_->view().has_value());
  links_->send(to, kStandingKind, writer.take());
}

void LetterCarrier::receive_standing(const MemberId& from, const wire::Bytes& bytes) {
  FieldReader reader("a standing", bytes);
  bool in_view = false;
  reader.field("in_view", in_view);
  reader.end();
  const std::lock_guard lock(mutex_);
  if (status_.view) return;
  if (encountered_.size() < kMostJoiners || encountered_.contains(from))
    encountered_[from] = in_view;
}

LetterCarrier::Encounters LetterCarrier::encounters() const {
  const std::lock_guard lock(mutex_);
  Encounters all;
  for (const auto& [id, in_view] : encountered_) ++(in_view ? all.in_views : all.joiners);
  return all;
}

void LetterCarrier::send_texts(const MemberId& to) {
  if (to == self()) return;
  std::map<std::string, std::string> texts;
  Digest view{};
  {
    const std::lock_guard lock(mutex_);
    texts = own_texts_;
    view = view_digest_;
  }
  for (const auto& [key, value] : texts) {
    FieldWriter writer;
    writer.field("view", view);
    writer.field("key", key);
    writer.field("value", value);
    links_->send(to, kTextKind, writer.take());
  }
}

// Texts may be lost, and those that came before this member was in the view were not kept. Who has
// said something may have said more.
void LetterCarrier::ask_for_texts() {
  std::vector<MemberId> others;
  FieldWriter writer;
  {
    const std::lock_guard lock(mutex_);
    if (waiting_for_texts_ == 0 || !status_.view) return;
    writer.field("view", view_digest_);
    for (const membership::Member& member : status_.view->members)
      if (member.id != self()) others.push_back(member.id);
  }
  const wire::Bytes question = writer.take();
  for (const MemberId& member : others) links_->send(member, kQuestionKind, question);
}

void LetterCarrier::tell(const Digest& view, const std::string& key, const std::string& value) {
  {
    const std::lock_guard lock(mutex_);
    if (view != view_digest_) return;
    own_texts_[key] = value;
    texts_changed_ = true;
  }
  loop_.wake();
}

std::optional<std::string> LetterCarrier::told(const Digest& view, const std::string& key,
                                               Duration longest) {
  const auto until = Clock::now() + longest;
  std::unique_lock lock(mutex_);
  ++waiting_for_texts_;
  std::optional<std::string> value;
  question_due_ = true;
  loop_.wake();
  const auto is_over = [&] { return view != view_digest_ || status_.ended || status_.left; };
  changed_.wait_until(lock, until, [&] {
    if (const auto own = own_texts_.find(key); own != own_texts_.end()) value = own->second;
    for (const auto& [member, texts] : texts_)
      if (const auto found = texts.find(key); found != texts.end()) value = found->second;
    return value || is_over();
  });
  --waiting_for_texts_;
  if (is_over()) throw why_over(view);
  return value;
}

}  // namespace shoal::collective::elastic
