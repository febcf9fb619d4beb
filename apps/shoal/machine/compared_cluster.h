#pragma once

#include <optional>
#include <string>

#include "shoal/collective/algorithm/cost_model.h"
#include "shoal/plan/cluster.h"

namespace shoal::apps {

/// Whose figures a measurement of this host tells.
enum class Measured {
  kRanks,    ///< of every device of the cluster, which is then an equal part of such a host
  kStorage,  ///< of the storage that all devices of the cluster write to
};

/// A cluster whose figures a measurement of `ranks` ranks is compared with, and into whose file it
/// may be written.
struct ComparedCluster {
  std::string name;  ///< a file or a preset; empty: the host for which jobs are planned
  bool update = false;

  /// Loads it. Throws Error(usage) for a file that is of another number of ranks, and for an update
  /// of what is no file or of what this host does not tell: the devices of a cluster of another
  /// runtime than Shoal's, the storage of several hosts. Otherwise as load_cluster.
  plan::Cluster load(int ranks, Measured measured) const;
  /// Writes the file anew, with the section [tcp] that it had; comments are lost. Throws
  /// Error(config) where the planner would refuse `cluster`, and Error(output).
  void write(const plan::Cluster& cluster) const;
  /// Returns what the text of a comparison calls it: the file, or the name of the preset.
  std::string called(const plan::Cluster& cluster) const;
};

/// Returns the text of a cluster file, with the section [tcp] where the costs of messages are
/// known.
std::string cluster_text(const plan::Cluster& cluster,
                         const std::optional<collective::CostModel>& tcp);

}  // namespace shoal::apps
