#pragma once

#include <map>
#include <string>
#include <vector>

#include "shoal/collective/algorithm/cost_model.h"
#include "shoal/forecast/plan_names.h"

namespace shoal::forecast {

/// So much work (FLOPs, or bytes) took so long.
struct TimedWork {
  double work = 0;
  double seconds = 0;
};

/// What was measured on one host with `ranks` ranks at work at the same time, each with its share
/// of the cores.
struct Measurements {
  std::string name;
  int ranks = 1;
  double memory_bytes = 0;                                 ///< of the host
  std::map<ElementType, std::vector<TimedWork>> products;  ///< FLOPs of a product
  std::vector<TimedWork> traversals;   ///< bytes read and written by an element-wise operation
  std::vector<TimedWork> all_reduces;  ///< bytes of the buffer; empty for one rank
  std::map<std::string, std::vector<TimedKernel>>
      kernels;  ///< Shoal's own, by name; empty: not measured
};

/// time = start + work / rate, by least squares of the relative error. Throws Error(usage) for
/// fewer than two different amounts of work, or times that are not positive.
struct Line {
  double start_s = 0;
  double rate = 0;
};
Line fit_line(const std::vector<TimedWork>& timed);

/// Messages over TCP between two ranks of one host.
struct MessageTimes {
  std::vector<TimedWork> one_way;  ///< bytes of a message, from one rank to the other
  double message_s =
      0;           ///< a small one of many that follow each other: how long a rank is busy with it
  TimedWork fold;  ///< bytes that are reduced into a result
};

/// The costs that explain them: one way is twice `message_s`, the latency and the time of the
/// bytes. Links between hosts are not measured and stay what they are by default. Throws as
/// fit_line.
collective::CostModel message_costs(const MessageTimes& measured);

/// The cluster that explains the measurements: one host whose devices are its ranks. Links between
/// hosts are not measured and stand as the inside one.
Cluster calibrated(const Measurements& measured);

}  // namespace shoal::forecast
