#include "shoal/collective/elastic/view_world.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "shoal/base/check.h"
#include "shoal/base/hex.h"
#include "shoal/collective/elastic/state_exchange.h"
#include "shoal/wire/advertised.h"
#include "shoal/wire/key_derivation.h"
#include "shoal/wire/key_values.h"

namespace shoal::collective::elastic {
namespace {

/// The addresses of a view's members, which their carriers tell each other.
class ViewKeys final : public wire::KeyValues {
 public:
  ViewKeys(LetterCarrier& carrier, const Digest& view) : carrier_(carrier), view_(view) {}

  void set(const std::string& key, const std::string& value, Deadline) override {
    carrier_.tell(view_, key, value);
  }
  std::string wait(const std::string& key, Deadline deadline) override {
    for (;;) {
      const auto longest = std::min<Duration>(deadline.left(), std::chrono::milliseconds(250));
      if (const auto value = carrier_.told(view_, key, longest)) return *value;
      if (deadline.passed()) {
        throw Error(ErrorKind::kTimeout, "elastic",
                    fmt::format("no member of the view has told '{}'", key));
      }
    }
  }
  std::string address() override { return carrier_.options().host; }

 private:
  LetterCarrier& carrier_;
  const Digest view_;
};

int place_of(const View& view, const MemberId& self) {
  const auto found = std::find_if(view.members.begin(), view.members.end(),
                                  [&](const auto& member) { return member.id == self; });
  SHOAL_CHECK(found != view.members.end(), "{} is not in its view of epoch {}", self.text(),
              view.epoch);
  return static_cast<int>(found - view.members.begin());
}

std::string text_of(const Digest& digest) {
  return std::string(reinterpret_cast<const char*>(digest.data()), digest.size());
}

/// The translator that others reach the carrier through is that of the view's connections too.
std::string advertised_by(const LetterCarrier& carrier) {
  const LetterCarrier::Options& network = carrier.options();
  if (network.advertised.empty()) return "";
  return wire::advertised_like(network.advertised.front(), carrier.endpoint(), network.ports);
}

/// Returns how members connect for collectives besides their letters: `name` names those of one
/// world, and nobody gets into it who has not the cluster's key. `purpose` is what it is for.
wire::TcpTransport::Options connection_options(const LetterCarrier::Options& network,
                                               const std::string& advertise,
                                               const std::string& purpose, const Digest& name,
                                               const ViewWorld::Options& options,
                                               std::function<void()> may_go_on) {
  return {.name = short_text(name),
          .key = hex(wire::derive_key(network.key, purpose, text_of(name))),
          .host = network.host,
          .ports = network.ports,
          .advertise = advertise,
          .silence = options.silence,
          .rails = options.rails,
          .tls = network.tls,
          .may_go_on = std::move(may_go_on)};
}

TcpCommunicator::Options call_options(const ViewWorld::Options& options) {
  TcpCommunicator::Options call;
  call.timeout = options.timeout;
  call.flight = options.flight;
  call.in_rank_order = options.in_rank_order;
  return call;
}

/// The addresses of a column's ranks, which somebody else carries from one to the others.
class MeetingKeys final : public wire::KeyValues {
 public:
  explicit MeetingKeys(ColumnWorld::Meeting meeting) : meeting_(std::move(meeting)) {}

  void set(const std::string&, const std::string& value, Deadline) override {
    addresses_ = meeting_(value);
  }
  std::string wait(const std::string& key, Deadline) override {
    // Keys of a transport end with the rank whose address they name.
    const std::size_t rank = std::stoul(key.substr(key.rfind('/') + 1));
    return addresses_.at(rank);
  }
  std::string address() override {
    throw Error(ErrorKind::kInternal, "elastic", "a column listens where its member does");
  }

 private:
  const ColumnWorld::Meeting meeting_;
  std::vector<std::string> addresses_;
};

}  // namespace

wire::TcpTransport::Options stream_options(const LetterCarrier& carrier, const Digest& name,
                                           const ViewWorld::Options& options,
                                           std::function<void()> may_go_on) {
  wire::TcpTransport::Options stream =
      connection_options(carrier.options(), advertised_by(carrier), "shoal state", name, options,
                         std::move(may_go_on));
  // The joiner is in no hurry, and the member computes. Each of several connections sends small
  // bursts at times of its own, each of which interrupts the member; where there are two, one that
  // breaks is replaced.
  stream.spins = false;
  stream.rails = 2;
  return stream;
}

ViewWorld::ViewWorld(LetterCarrier& carrier, const View& view, const Options& options,
                     Deadline deadline)
    : view_(view), rank_(place_of(view, carrier.self())) {
  const Digest digest = membership::digest(view);
  ViewKeys keys(carrier, digest);
  transport_ = std::make_shared<wire::TcpTransport>(
      connection_options(carrier.options(), advertised_by(carrier), "shoal view", digest, options,
                         [&carrier, digest] { carrier.check_view(digest); }),
      keys, rank_, static_cast<int>(view.members.size()), deadline);
  group_ = std::make_shared<TcpCommunicator>(transport_, call_options(options));
  switch_->transport = transport_.get();
  carrier.when_over(digest, [kept = switch_](const Error& why) {
    const std::lock_guard lock(kept->mutex);
    if (kept->transport) kept->transport->abort(why);
  });
}

ViewWorld::~ViewWorld() {
  {
    const std::lock_guard lock(switch_->mutex);
    switch_->transport = nullptr;
  }
  group_.reset();
}

std::optional<Error> ViewWorld::failure() const {
  try {
    transport_->check();
  } catch (const Error& error) {
    return error;
  }
  return std::nullopt;
}

void ViewWorld::abort(const Error& cause) { transport_->abort(cause); }

ColumnWorld::ColumnWorld(const LetterCarrier::Options& network, const ViewWorld::Options& options,
                         const Place& place, Meeting meeting, std::function<void()> may_go_on,
                         Deadline deadline) {
  MeetingKeys keys(std::move(meeting));
  transport_ = std::make_shared<wire::TcpTransport>(
      connection_options(network, network.advertise, fmt::format("shoal column {}", place.column),
                         place.view, options, std::move(may_go_on)),
      keys, place.rank, place.size, deadline);
  group_ = std::make_shared<TcpCommunicator>(transport_, call_options(options));
}

void ColumnWorld::abort(const Error& cause) { transport_->abort(cause); }

}  // namespace shoal::collective::elastic
