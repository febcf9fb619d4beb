#pragma once

#include <string>

#include "shoal/base/clock.h"
#include "shoal/collective/algorithm/cost_model.h"
#include "shoal/collective/route/route_mode.h"
#include "shoal/wire/address.h"
#include "shoal/wire/tls_mode.h"

namespace shoal::collective {

/// Says how the ranks of a job reach each other; the user of the job chooses it. Only
/// `tls`, `routes` and `in_rank_order` must be the same on all ranks.
struct TransportOptions {
  /// Ranks that name different hosts share no memory, even where they could: tests play several
  /// hosts on one machine. Empty: ranks find out who shares memory.
  std::string host;
  /// TCP: name or prefix of the address that the rank listens on. Empty: the address that leads to
  /// rank 0.
  std::string interface;
  /// TCP: the rank listens on the first of these ports that is free. 0: the system chooses.
  wire::PortRange ports;
  /// TCP: where other ranks reach this one behind an address translator, "HOST" or "HOST:PORT", see
  /// wire::advertised_at. Empty: at the address that it listens on.
  std::string advertise;
  /// TCP: connections between two ranks of different hosts or of one, at most wire::kMostRails. The
  /// number of the higher one of two ranks counts for both. 0: as many as the round trip asks for.
  int rails = 0;
  /// TCP: a rank that sends nothing for so long is lost. 0: as long as the round trip asks for, see
  /// wire::silence_for.
  Duration silence{};
  /// TCP: connections that are encrypted. The same on all ranks.
  wire::TlsMode tls = wire::TlsMode::kAuto;
  /// TCP: whether the links between ranks that are far apart are measured, so that uneven ones are
  /// used as they are. The same on all ranks.
  RouteMode routes = RouteMode::kNatural;
  /// TCP: the costs by which algorithms are chosen. Those of rank 0 count for all ranks.
  CostModel link_costs;
  /// TCP: exceptions from that choice, in the syntax of Choice
  /// ("all_reduce=ring,broadcast=direct").
  std::string algorithms;
  /// Every reduction folds in the order of ranks, whatever carries it, and so gives the same bits
  /// on one host, on several, and over TCP.
  bool in_rank_order = false;
};

}  // namespace shoal::collective
