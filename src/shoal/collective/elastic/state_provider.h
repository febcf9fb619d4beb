#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "shoal/base/clock.h"
#include "shoal/base/error.h"
#include "shoal/collective/elastic/letter_carrier.h"
#include "shoal/collective/elastic/steady_state.h"
#include "shoal/collective/elastic/view_world.h"

namespace shoal::collective::elastic {

/// Gives the state of a member to joiners that ask for it (state_fetch.h), while the member goes
/// on. Each stream has a thread, and connections of its own: a world of two ranks, the member and
/// the joiner, which is found and authenticated through their carriers. Threads: one at a time.
class StateProvider {
 public:
  /// Other joiners are told to ask somebody else, or later; so is, while the member attempts a
  /// step, who does not wait for its end.
  static constexpr std::size_t kMostStreams = 4;
  struct Options {
    ViewWorld::Options world;
    Duration meeting_timeout = std::chrono::seconds(60);  ///< for the joiner to connect
    Duration stream_timeout = std::chrono::minutes(30);
    std::uint64_t bytes_per_second = 0;  ///< of each stream at most; 0: no limit
  };
  StateProvider(LetterCarrier& carrier, std::shared_ptr<SteadyState> state, Options options);
  /// Ends the streams.
  ~StateProvider();
  StateProvider(const StateProvider&) = delete;
  StateProvider& operator=(const StateProvider&) = delete;

  /// Returns what went wrong with streams since the last call.
  std::vector<Error> take_faults();

 private:
  struct Stream {
    MemberId to;
    Digest name{};
    std::string address;                      ///< once this member listens there; under `mutex_`
    wire::TcpTransport* transport = nullptr;  ///< while it may be aborted; under `mutex_`
    std::atomic<bool> done{false};
    std::thread thread;
  };
  class Keys;

  void received(const MemberId& from, const StateMessage& message);
  void begin(const MemberId& to, const StateMessage& question);
  void put_off(const MemberId& joiner, const Digest& stream);
  void reap();
  void serve(Stream& stream);
  void give(Stream& stream);
  void check() const;
  void tell_address(Stream& stream, const std::string& address);

  LetterCarrier& carrier_;
  const std::shared_ptr<SteadyState> state_;
  const Options options_;
  std::atomic<bool> stop_{false};
  std::mutex mutex_;  ///< guards what follows
  std::vector<std::unique_ptr<Stream>> streams_;
  std::map<MemberId, Digest> put_off_;  ///< the last stream that each was told to ask later for
  std::vector<Error> faults_;
};

}  // namespace shoal::collective::elastic
