// How a rank asks the others where they stand, and how it answers while it is busy.
#include <algorithm>
#include <chrono>
#include <cstring>
#include <utility>

#include "shoal/wire/tcp_control.h"
#include "shoal/wire/tcp_transport.h"

namespace shoal::wire {
namespace {

constexpr std::size_t kMaxAnswerBytes = 4096;

}  // namespace

// A question is the number of a group; an answer is that number and the status of the group. A
// peer that does not read its answers gets no further ones.
void TcpTransport::answer_question(int r, const ReceivedChunk& question) {
  std::uint64_t group = 0;
  if (question.bytes() != sizeof group || !peers_[r].link->idle({0, kAnswer})) return;
  std::memcpy(&group, question.data(), sizeof group);
  Bytes message(question.data(), question.data() + sizeof group);
  if (const auto entry = answers_.find(group); entry != answers_.end()) {
    const Bytes answer = entry->second();
    message.insert(message.end(), answer.begin(), answer.end());
  }
  peers_[r].link->send({0, kAnswer}, kControlPriority, std::move(message));
  flush_peer(r);
}

void TcpTransport::keep_answer(int r, const ReceivedChunk& answer) {
  std::uint64_t group = 0;
  if (answer.bytes() < sizeof group || answer.bytes() > sizeof group + kMaxAnswerBytes) return;
  std::memcpy(&group, answer.data(), sizeof group);
  // A late answer to an earlier question is dropped.
  if (asked_ == group)
    peers_[r].answer = Bytes(answer.data() + sizeof group, answer.data() + answer.bytes());
}

void TcpTransport::answer_for(std::uint64_t group, std::function<Bytes()> answer) {
  const std::lock_guard lock(mutex_);
  if (answer) {
    answers_[group] = std::move(answer);
  } else {
    answers_.erase(group);
  }
}

std::vector<std::optional<Bytes>> TcpTransport::ask(std::uint64_t group, Duration longest) {
  const auto* bytes = reinterpret_cast<const std::byte*>(&group);
  {
    const std::lock_guard lock(mutex_);
    asked_ = group;
    for (Peer& peer : peers_) peer.answer.reset();
    send_control(kQuestion, Bytes(bytes, bytes + sizeof group));
  }
  // A second question of another thread would replace this one; the answers to the first are then
  // missing, which its caller must expect anyway.
  for (const Deadline end = Deadline::in(longest);;) {
    const auto seen = events();
    {
      const std::lock_guard lock(mutex_);
      const bool all = std::all_of(peers_.begin(), peers_.end(),
                                   [](const Peer& p) { return !p.link || p.goodbye || p.answer; });
      if (all || failure_ || end.passed()) {
        std::vector<std::optional<Bytes>> answers;
        for (Peer& peer : peers_) {
          // An empty answer comes from a rank that does not know the group.
          const bool known = peer.answer && !peer.answer->empty();
          answers.push_back(known ? std::exchange(peer.answer, std::nullopt) : std::nullopt);
        }
        asked_.reset();
        return answers;
      }
    }
    wait_for_event(seen, std::min<Duration>(end.left(), std::chrono::milliseconds(10)));
  }
}

}  // namespace shoal::wire
