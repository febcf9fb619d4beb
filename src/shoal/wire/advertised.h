#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "shoal/wire/address.h"

namespace shoal::wire {

/// Returns where others reach a rank that listens at `listens_at`, on one of `ports`, behind an
/// address translator. "203.0.113.7": at the same port there. "203.0.113.7:9000": the first port of
/// `ports` is 9000 there, the next one 9001. Throws Error(config) for any other text, and for a
/// port where `ports` has none, because the system chooses.
Endpoint advertised_at(std::string_view text, const Endpoint& listens_at, PortRange ports);

/// Throws Error(config) where advertised_at would for a rank on the first of `ports`; an empty text
/// advertises nothing.
void check_advertised(std::string_view text, PortRange ports);

/// Returns what advertised_at takes for the other ports of `ports`, of which `listens_at` has one
/// that others reach at `there`. Where the system chooses ports they are the same there.
std::string advertised_like(const Endpoint& there, const Endpoint& listens_at, PortRange ports);

/// The addresses of a rank as one text, in the order in which others try them, and back. The text
/// comes from another rank: throws Error(config) for one that makes no sense.
std::string text_of(const std::vector<Endpoint>& addresses);
std::vector<Endpoint> parse_addresses(std::string_view text);

}  // namespace shoal::wire
