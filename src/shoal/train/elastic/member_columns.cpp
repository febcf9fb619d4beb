#include "shoal/train/elastic/member_columns.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <exception>
#include <utility>

#include "shoal/base/check.h"
#include "shoal/base/span_recorder.h"

namespace shoal::train {

namespace elastic = collective::elastic;
using collective::Communicator;

namespace {

constexpr Duration kMoment = std::chrono::milliseconds(1);
/// The addresses of a rank as text: the one at which it listens, and an advertised one.
constexpr std::size_t kAddressBytes = 640;

/// Returns the part of an operation of `group`, which begins when it first goes on.
MemberRanks::Part part_of(Communicator& group, const collective::Operation& operation,
                          const std::function<void()>& in_the_middle,
                          std::function<void(const Error&)> give_up) {
  MemberRanks::Part part;
  const auto handle = std::make_shared<std::optional<collective::Handle>>();
  part.goes_on = [&group, operation, in_the_middle, handle] {
    if (!*handle) {
      *handle = group.start(operation);
      in_the_middle();
    }
    const bool done = group.wait_briefly(**handle, kMoment);
    // The view may be over for others although this rank's part is complete.
    group.look_for_failure();
    return done;
  };
  part.give_up = [&group, handle, give_up = std::move(give_up)](const Error& cause) {
    // The others of the column may wait for what does not come any more. What has failed here is no
    // failure of theirs.
    group.abort(Error(ErrorKind::kAborted, "elastic",
                      fmt::format("a member has failed in the view: {}", cause.what())));
    try {
      // Behind this nobody touches the caller's memory.
      if (*handle) group.wait(**handle);
    } catch (const Error&) {
      // It has ended.
    }
    give_up(cause);
  };
  return part;
}

MemberRanks::Part nothing() {
  MemberRanks::Part part;
  part.goes_on = [] { return true; };
  return part;
}

}  // namespace

void Column::carry_out(const collective::Operation& operation, const char* name,
                       const std::function<void()>& in_the_middle) const {
  const ScopedCommunication time(name);
  if (ranks_.is_alone()) {
    const collective::Handle begun = group_.start(operation);
    in_the_middle();
    return group_.wait(begun);
  }
  ranks_.together(part_of(group_, operation, in_the_middle, give_up_));
}

std::vector<double> Column::gather(std::span<const double> own) const {
  std::vector<double> all(own.size() * static_cast<std::size_t>(size()));
  const collective::Operation operation{
      .kind = collective::Kind::kAllGather,
      .type = ElementType::kF64,
      .buffer = {.input = own.data(), .output = all.data(), .count = own.size()}};
  if (ranks_.is_alone()) {
    carry_out(operation, "gather");
    return all;
  }
  const ScopedCommunication time("gather");
  ranks_.together(ranks_.leads() ? part_of(
                                       group_, operation, [] {}, give_up_)
                                 : nothing());
  const auto bytes = std::as_bytes(std::span(all));
  const MemberRanks::Bytes of_leader = ranks_.from_leader({bytes.begin(), bytes.end()});
  std::memcpy(all.data(), of_leader.data(), of_leader.size());
  return all;
}

/// A rank that connects, on a thread of its own: its member may give up meanwhile.
class MemberColumns::Connecting {
 public:
  Connecting(const Options& options, const elastic::ColumnWorld::Place& place) {
    thread_ = std::thread([this, options, place] {
      try {
        world_ = std::make_unique<elastic::ColumnWorld>(
            options.network, options.world, place,
            [this](const std::string& own) { return meet(own); },
            [given_up = is_given_up_] {
              if (*given_up) throw gave_up();
            },
            Deadline::in(options.meeting_timeout));
      } catch (...) {
        failure_ = std::current_exception();
      }
      is_done_ = true;
    });
  }
  ~Connecting() { end(); }
  Connecting(const Connecting&) = delete;
  Connecting& operator=(const Connecting&) = delete;

  /// Returns the address at which this rank listens.
  std::string address() {
    std::future<std::string> address = address_.get_future();
    while (address.wait_for(kMoment) != std::future_status::ready) {
      if (!is_done_) continue;
      if (failure_) std::rethrow_exception(failure_);
    }
    return address.get();
  }
  /// Tells it those of all ranks of the column.
  void tell(std::vector<std::string> addresses) { others_.set_value(std::move(addresses)); }
  bool goes_on() {
    if (!is_done_) std::this_thread::sleep_for(kMoment);
    if (!is_done_) return false;
    if (failure_) std::rethrow_exception(failure_);
    return true;
  }
  void give_up() { *is_given_up_ = true; }
  /// Returns when it has connected, or given up.
  void end() {
    // Connections that are there replace lost ones as long as they are not given up.
    if (!is_done_) give_up();
    if (thread_.joinable()) thread_.join();
  }
  /// Returns the connections, where there are any. Call it behind `goes_on` or `end`.
  std::unique_ptr<elastic::ColumnWorld> take() { return std::move(world_); }

 private:
  static Error gave_up() {
    return {ErrorKind::kAborted, "elastic", "the member has given up the view"};
  }
  std::vector<std::string> meet(const std::string& own) {
    address_.set_value(own);
    std::future<std::vector<std::string>> others = others_.get_future();
    while (others.wait_for(kMoment) != std::future_status::ready)
      if (*is_given_up_) throw gave_up();
    return others.get();
  }

  std::promise<std::string> address_;
  std::promise<std::vector<std::string>> others_;
  /// The connections ask it as long as they live.
  std::shared_ptr<std::atomic<bool>> is_given_up_ = std::make_shared<std::atomic<bool>>(false);
  std::atomic<bool> is_done_{false};  ///< is stored behind the two that follow
  std::unique_ptr<elastic::ColumnWorld> world_;
  std::exception_ptr failure_;
  std::thread thread_;
};

MemberColumns::MemberColumns(const MemberRanks& ranks, Options options)
    : ranks_(ranks), options_(std::move(options)) {}

MemberColumns::~MemberColumns() { retire(); }

void MemberColumns::retire() {
  if (!world_) return;
  world_->close();
  endings_.end(std::move(world_));
}

Column MemberColumns::column(Communicator* leaders) {
  if (ranks_.leads()) return {ranks_, *leaders};
  return {ranks_, *world_->group(), [this](const Error&) { retire(); }};
}

void MemberColumns::connect(const elastic::ColumnWorld::Place& place, Communicator* leaders) {
  retire();
  std::optional<Connecting> connecting;
  std::string own;
  if (!ranks_.leads()) {
    connecting.emplace(options_, place);
    try {
      own = connecting->address();
    } catch (const Error&) {
      // All ranks hear of it below.
    }
  }
  std::vector<std::string> addresses = exchange(own, place.size, leaders);
  MemberRanks::Part part = nothing();
  if (connecting) {
    connecting->tell(std::move(addresses));
    part.goes_on = [&] { return connecting->goes_on(); };
    part.give_up = [&](const Error&) { connecting->give_up(); };
  } else {
    // The leader hears that the view is over.
    part.goes_on = [leaders] {
      leaders->look_for_failure();
      return true;
    };
  }
  try {
    ranks_.together(part);
  } catch (const FailedTogether& error) {
    // What is connected already ends as that of an earlier view.
    if (connecting) connecting->end();
    if (connecting) world_ = connecting->take();
    if (world_) world_->abort(error);
    retire();
    throw;
  }
  if (connecting) world_ = connecting->take();
}

/// Returns the addresses of this rank's column, in the order of the members; of the leader's
/// nothing.
std::vector<std::string> MemberColumns::exchange(const std::string& own, int members,
                                                 Communicator* leaders) const {
  SHOAL_CHECK(own.size() < kAddressBytes, "a rank's addresses have {} bytes", own.size());
  MemberRanks::Bytes padded(kAddressBytes);
  std::memcpy(padded.data(), own.data(), own.size());
  const auto ranks = static_cast<std::size_t>(ranks_.size());
  MemberRanks::Bytes of_member;
  for (const MemberRanks::Bytes& one : ranks_.to_leader(padded, std::vector<bool>(ranks, false)))
    of_member.insert(of_member.end(), one.begin(), one.end());
  MemberRanks::Bytes of_all(ranks * kAddressBytes * static_cast<std::size_t>(members));
  const collective::Operation operation{
      .kind = collective::Kind::kAllGather,
      .type = ElementType::kU8,
      .buffer = {
          .input = of_member.data(), .output = of_all.data(), .count = ranks * kAddressBytes}};
  ranks_.together(leaders ? part_of(
                                *leaders, operation, [] {}, [](const Error&) {})
                          : nothing());
  of_all = ranks_.from_leader(std::move(of_all));
  std::vector<std::string> column;
  for (int member = 0; member < members && !ranks_.leads(); ++member) {
    const std::size_t at =
        static_cast<std::size_t>(member) * ranks + static_cast<std::size_t>(ranks_.rank());
    // A text that fills its place ends with it.
    std::string text(reinterpret_cast<const char*>(of_all.data() + at * kAddressBytes),
                     kAddressBytes - 1);
    text.resize(std::strlen(text.c_str()));
    column.push_back(std::move(text));
  }
  return column;
}

}  // namespace shoal::train
