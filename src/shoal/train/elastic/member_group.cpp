#include "shoal/train/elastic/member_group.h"

#include <cstring>
#include <type_traits>
#include <utility>

#include "shoal/base/check.h"
#include "shoal/train/elastic/member_state.h"
#include "shoal/wire/error_bytes.h"

namespace shoal::train {

namespace elastic = collective::elastic;
using collective::Communicator;
using Bytes = MemberRanks::Bytes;

namespace {

template <class T>
Bytes bytes_of(const T& value) {
  static_assert(std::is_trivially_copyable_v<T>);
  const auto* const first = reinterpret_cast<const std::byte*>(&value);
  return {first, first + sizeof value};
}

template <class T>
T value_in(const Bytes& bytes) {
  SHOAL_CHECK(bytes.size() == sizeof(T), "{} bytes from the leader, not {}", bytes.size(),
              sizeof(T));
  T value;
  std::memcpy(&value, bytes.data(), sizeof value);
  return value;
}

/// What a roster says to the ranks that are no leaders.
struct AttemptMessage {
  MemberRanks::Digest view{};
  std::int64_t connects = 0;  ///< 1: it is the first one in this view
  std::int64_t rank = 0;
  std::int64_t size = 0;
  std::uint64_t epoch = 0;
  std::uint64_t step = 0;
  std::uint64_t samples = 0;
  std::int64_t attempt = 0;
};

/// A rank of this member has failed in an attempt. ElasticGroup must not take what it has thrown
/// for the loss of another member.
class MemberFailed final : public std::exception {
 public:
  explicit MemberFailed(Error cause) : error(std::move(cause)) {}
  const char* what() const noexcept override { return error.what(); }
  const Error error;
};

/// Takes over this rank's part of a state; where one rank cannot, no rank goes on with it.
void take_part(const MemberRanks& ranks, const MemberStateAccess& state, const Bytes& bytes) {
  MemberRanks::Part part;
  bool is_taken = false;
  part.goes_on = [&] {
    if (!std::exchange(is_taken, true)) state.read(bytes);
    return true;
  };
  ranks.together(part);
}

}  // namespace

void LeadingSide::tell(MemberCommand command, const Bytes& bytes) {
  if (ranks_.is_alone()) return;
  ranks_.from_leader(bytes_of(command));
  ranks_.from_leader(bytes);
}

// Where the others do not wait, they learn of the failure as those of any job do.
void LeadingSide::tell_failure(const std::function<void()>& call) {
  failed_together_ = false;
  try {
    call();
  } catch (const StoppedWhileWaiting& stopped) {
    tell(MemberCommand::kStopped, bytes_of(static_cast<std::int64_t>(stopped.signal)));
    throw;
  } catch (const MemberFailed& failed) {
    throw Error(failed.error);
  } catch (const Error& error) {
    if (!others_wait_) throw;
    const wire::Bytes bytes = wire::encode(error);
    tell(MemberCommand::kFailed, {bytes.begin(), bytes.end()});
    failed_together_ = true;
    throw;
  }
}

Bytes LeadingSide::while_others_wait(const std::function<Bytes()>& call) {
  Bytes bytes;
  tell_failure([&] { bytes = call(); });
  tell(MemberCommand::kGoOn, bytes);
  return bytes;
}

void LeadingSide::let_join() {
  while_others_wait([this]() -> Bytes {
    group_->let_join();
    return {};
  });
}

Bytes LeadingSide::write() {
  if (ranks_.is_alone()) return state_.write();
  try {
    tell(MemberCommand::kWrite);
    return gather_state(ranks_, state_.write());
  } catch (const Error& error) {
    throw MemberFailed(error);
  }
}

void LeadingSide::read(std::span<const std::byte> bytes) {
  if (ranks_.is_alone()) return state_.read(bytes);
  const auto parts = parts_of_state(bytes);
  SHOAL_CHECK(parts.size() == static_cast<std::size_t>(ranks_.size()),
              "a state of {} ranks, and this member has {}", parts.size(), ranks_.size());
  try {
    tell(MemberCommand::kRead);
    take_part(ranks_, state_, ranks_.part_from_leader(parts));
  } catch (const FailedTogether&) {
    throw;
  } catch (const Error& error) {
    throw MemberFailed(error);
  }
}

elastic::Attempt LeadingSide::try_with_all(const Attempt& attempt, Communicator& leaders,
                                           const elastic::Roster& roster) {
  const MemberRanks::Digest view = collective::membership::digest(roster.view);
  const bool connects = connected_ != view;
  const AttemptMessage message{.view = view,
                               .connects = connects ? 1 : 0,
                               .rank = roster.rank,
                               .size = roster.size,
                               .epoch = roster.view.epoch,
                               .step = roster.step,
                               .samples = roster.samples,
                               .attempt = roster.attempt};
  others_wait_ = false;
  try {
    tell(MemberCommand::kAttempt, bytes_of(message));
    connected_.reset();
    if (connects) {
      columns_.connect({.view = view, .column = 0, .rank = roster.rank, .size = roster.size},
                       &leaders);
    }
    const elastic::Attempt made = attempt(columns_.column(&leaders), roster);
    connected_ = view;
    others_wait_ = true;
    return made;
  } catch (const FailedTogether&) {
    others_wait_ = true;
    throw;
  } catch (const Error& error) {
    throw MemberFailed(error);
  }
}

elastic::StepResult LeadingSide::step(const Attempt& attempt, const std::function<void()>& apply) {
  elastic::StepResult result;
  tell_failure([&] {
    result = group_->step(
        group_->next_step(),
        [&](const std::shared_ptr<Communicator>& leaders, const elastic::Roster& roster) {
          if (ranks_.is_alone()) return attempt(Column(ranks_, *leaders), roster);
          return try_with_all(attempt, *leaders, roster);
        },
        [&] {
          tell(MemberCommand::kApply);
          others_wait_ = false;
          apply();
        });
  });
  others_wait_ = true;
  return result;
}

FollowingSide::Told FollowingSide::next() {
  failed_together_ = false;
  for (;;) {
    const auto command = value_in<MemberCommand>(ranks_.from_leader({}));
    Bytes bytes = ranks_.from_leader({});
    switch (command) {
      case MemberCommand::kWrite:
        gather_state(ranks_, state_.write());
        continue;
      case MemberCommand::kRead:
        try {
          take_part(ranks_, state_, ranks_.part_from_leader({}));
        } catch (const FailedTogether&) {
          // The leader says what follows.
        }
        continue;
      case MemberCommand::kFailed:
        failed_together_ = true;
        throw wire::decode_error(bytes);
      case MemberCommand::kStopped:
        throw StoppedWhileWaiting(static_cast<int>(value_in<std::int64_t>(bytes)));
      default:
        return {command, std::move(bytes)};
    }
  }
}

Bytes FollowingSide::wait_for_leader() {
  Told told = next();
  SHOAL_CHECK(told.command == MemberCommand::kGoOn, "the leader is at a step");
  return std::move(told.bytes);
}

/// Returns nothing where the attempt has failed together.
std::optional<elastic::StepResult> FollowingSide::try_as_told(const Attempt& attempt,
                                                              const Bytes& bytes) {
  const auto message = value_in<AttemptMessage>(bytes);
  elastic::View view;
  view.epoch = message.epoch;
  const elastic::Roster roster{.view = view,
                               .rank = static_cast<int>(message.rank),
                               .size = static_cast<int>(message.size),
                               .step = message.step,
                               .samples = message.samples,
                               .attempt = static_cast<int>(message.attempt)};
  try {
    if (message.connects != 0) {
      columns_.connect(
          {.view = message.view, .column = ranks_.rank(), .rank = roster.rank, .size = roster.size},
          nullptr);
    }
    const elastic::Attempt made = attempt(columns_.column(nullptr), roster);
    return elastic::StepResult{.view = view,
                               .rank = roster.rank,
                               .step = roster.step,
                               .first_sample = roster.samples,
                               .samples = 0,
                               .state = made.state,
                               .attempts = roster.attempt};
  } catch (const FailedTogether&) {
    // Whoever is left in the column must not wait for this rank.
    columns_.retire();
    return std::nullopt;
  }
}

elastic::StepResult FollowingSide::step(const Attempt& attempt,
                                        const std::function<void()>& apply) {
  std::optional<elastic::StepResult> result;
  for (;;) {
    const Told told = next();
    if (told.command == MemberCommand::kAttempt) {
      result = try_as_told(attempt, told.bytes);
      continue;
    }
    SHOAL_CHECK(told.command == MemberCommand::kApply && result,
                "a step is committed that this rank has not attempted");
    apply();
    return *std::move(result);
  }
}

}  // namespace shoal::train
