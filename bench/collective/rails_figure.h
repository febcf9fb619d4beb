#pragma once

#include <string>
#include <utility>
#include <vector>

namespace shoal::emulation {

/// The rates of two ranks at one link, by the number of their connections.
struct RailCurve {
  int round_trip_ms = 0;
  std::vector<std::pair<int, double>> by_rails;  ///< connections, megabits a second
  double plain = 0;                              ///< of the plain connections, megabits a second
};

/// Returns an SVG picture of the curves: payload a second in each direction over the number of
/// connections, and beside each curve the rate of `plain_connections` plain ones as a broken line.
std::string rails_figure(const std::string& title, const std::vector<RailCurve>& curves,
                         double link_megabits, int plain_connections);

}  // namespace shoal::emulation
