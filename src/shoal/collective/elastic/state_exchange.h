#pragma once

#include <cstddef>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "shoal/base/clock.h"
#include "shoal/base/error.h"
#include "shoal/collective/communicator.h"
#include "shoal/collective/membership/view.h"

namespace shoal::collective::elastic {

using membership::Digest;

/// Returns the beginning of a digest, for people.
std::string short_text(const Digest& digest);
/// Sends bytes from rank 0 to the others. Throws what collectives throw, Error(timeout) at the
/// deadline.
void broadcast(Communicator& group, void* data, std::size_t bytes, Deadline deadline);

/// How the group reaches what the members train: everything that a step changes.
struct StateAccess {
  /// Returns the state behind the last committed step, as bytes.
  std::function<std::vector<std::byte>()> write;
  /// Takes over a state whose digest is right.
  std::function<void(std::span<const std::byte>)> read;
  /// Returns the digest of such bytes, which is what attempts return for the state that they lead
  /// to. By default SHA-256.
  std::function<Digest(std::span<const std::byte>)> digest = sha256;
  /// The state changes in `apply` alone, whatever members compute between two steps, and they call
  /// ElasticGroup::let_join meanwhile. Then a joiner gets it while the others go on: `write` may be
  /// called by another thread at any time but during `apply`, and `read` more than once.
  bool steady = false;

  static Digest sha256(std::span<const std::byte> bytes);
};

/// Sends the state of a view to those of its members that have none, from one that has it. Each
/// verifies what it gets against the digest that the view carries; a wrong state is passed to
/// `report` as an Error(data) that names the provider, and the next one that has the state is
/// asked. Everybody waits until that is done. Collective: all members of `group`, whose ranks are
/// the places in `view`. Throws what collectives throw, Error(timeout) at the deadline. Where no
/// provider had the right state: Error(data) on those without it, Error(aborted) on the others.
void exchange_state(Communicator& group, const membership::View& view, bool has_state,
                    const StateAccess& state, const std::function<void(const Error&)>& report,
                    Deadline deadline);

}  // namespace shoal::collective::elastic
