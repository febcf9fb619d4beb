#include "shoal/collective/elastic/view_world.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "shoal/base/check.h"
#include "shoal/base/hex.h"
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

/// The translator that others reach the carrier through is that of the view's connections too.
std::string advertised_by(const LetterCarrier& carrier) {
  const LetterCarrier::Options& network = carrier.options();
  if (network.advertised.empty()) return "";
  return wire::advertised_like(network.advertised.front(), carrier.endpoint(), network.ports);
}

std::string key_of(const std::string& cluster_key, const Digest& view) {
  const std::string name(reinterpret_cast<const char*>(view.data()), view.size());
  return hex(wire::derive_key(cluster_key, "shoal view", name));
}

}  // namespace

ViewWorld::ViewWorld(LetterCarrier& carrier, const View& view, const Options& options,
                     Deadline deadline)
    : view_(view), rank_(place_of(view, carrier.self())) {
  const Digest digest = membership::digest(view);
  const LetterCarrier::Options& network = carrier.options();
  ViewKeys keys(carrier, digest);
  transport_ = std::make_shared<wire::TcpTransport>(
      wire::TcpTransport::Options{.name = hex(std::span(digest).first<8>()),
                                  .key = key_of(network.key, digest),
                                  .host = network.host,
                                  .ports = network.ports,
                                  .advertise = advertised_by(carrier),
                                  .silence = options.silence,
                                  .rails = options.rails,
                                  .tls = network.tls,
                                  .may_go_on = [&carrier, digest] { carrier.check_view(digest); }},
      keys, rank_, static_cast<int>(view.members.size()), deadline);
  TcpCommunicator::Options call;
  call.timeout = options.timeout;
  call.flight = options.flight;
  call.in_rank_order = options.in_rank_order;
  group_ = std::make_shared<TcpCommunicator>(transport_, std::move(call));
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

}  // namespace shoal::collective::elastic
