#pragma once

#include <map>
#include <string>
#include <vector>

#include "shoal/collective/algorithm/cost_model.h"
#include "shoal/forecast/plan_names.h"

namespace shoal::forecast {

/// An amount of work (FLOPs, or bytes) and the time that it took.
struct TimedWork {
  double work = 0;
  double seconds = 0;
};

/// Measurements of one host with `ranks` ranks at work at the same time, each on its share of the
/// cores.
struct Measurements {
  std::string name;
  int ranks = 1;
  double ranks_at_once = 0;  ///< ranks that compute at the same time; 0: all
  double memory_bytes = 0;   ///< memory of the host
  std::map<ElementType, std::vector<TimedWork>> products;  ///< FLOPs of a matmul
  std::vector<TimedWork> traversals;   ///< bytes read and written by an element-wise operation
  std::vector<TimedWork> all_reduces;  ///< bytes of the buffer; empty for one rank
  /// Shoal's own kernels by name; empty: not measured.
  std::map<std::string, std::vector<TimedKernel>> kernels;
};

/// The line time = start + work / rate. fit_line fits it with the least squares of the relative
/// errors; it throws Error(usage) for fewer than two different amounts of work, or times that are
/// not positive.
struct LineFit {
  double start_s = 0;
  double rate = 0;
};
LineFit fit_line(const std::vector<TimedWork>& timed);

/// Messages over TCP between two ranks of one host.
struct MessageTimes {
  std::vector<TimedWork> one_way;  ///< bytes of a message, from one rank to the other
  /// The time that a rank is busy with one small message of many that follow each other.
  double message_s = 0;
  TimedWork fold;  ///< bytes that are reduced into a result
};

/// Returns the costs that explain the times: one way is twice `message_s`, the latency and the time
/// of the bytes. Links between hosts are not measured and keep their defaults. Throws as fit_line.
collective::CostModel message_costs(const MessageTimes& measured);

// Each of these gives a cluster the figures that explain measurements of one kind, and leaves
// figures that it does not name as they are. `calibrated` is made of them.

/// `traversals`: as those of Measurements. Sets the bandwidth of a device's memory, the share of it
/// that an element-wise operation reaches, what every operation takes beside, and the host's
/// memory. A matmul is an operation too: it starts later or earlier from then on, until
/// `set_products` is called. Throws as fit_line.
void set_memory(Cluster& cluster, const std::vector<TimedWork>& traversals);
/// `products`: as those of Measurements, of float32 at least. Sets the peaks of these types, and
/// which share of them a matmul reaches, which starts `operation_s` of the cluster later. All types
/// have one share and lose as many FLOPs at the start: the peaks of types that are not among
/// `products` change so that their large matmuls take as long as before. Throws as fit_line.
void set_products(Cluster& cluster, const std::map<ElementType, std::vector<TimedWork>>& products);
/// Bytes/s at which all devices of the cluster write and read checkpoints. Throws Error(usage)
/// where one is not positive.
void set_storage(Cluster& cluster, double write_bandwidth, double read_bandwidth);

/// Returns the cluster that explains the measurements: one host whose devices are its ranks. Links
/// between hosts are not measured and are set to the inside link.
Cluster calibrated(const Measurements& measured);

}  // namespace shoal::forecast
