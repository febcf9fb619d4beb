#include "apps/shoal/machine/compared_cluster.h"

#include <fmt/format.h>

#include "apps/shoal/cluster_file.h"
#include "apps/shoal/machine/measured_by.h"
#include "apps/shoal/plan/options.h"
#include "shoal/base/error.h"
#include "shoal/base/file.h"
#include "shoal/train/config/link_costs.h"

namespace shoal::apps {
namespace {

/// Refuses to write figures of this host into the file of a cluster that they say nothing of.
void check_update(const std::string& name, const plan::Cluster& cluster, Measured measured) {
  if (measured == Measured::kRanks && cluster.runtime != plan::Runtime::kShoal) {
    throw Error(ErrorKind::kUsage, "bench",
                fmt::format("--update: {} describes devices of another runtime than Shoal's ranks, "
                            "which are measured here (runtime = \"{}\")",
                            name, plan::name(cluster.runtime)))
        .hint("`shoal plan calibrate` writes a file for this host");
  }
  if (measured == Measured::kStorage && cluster.hosts > 1) {
    throw Error(ErrorKind::kUsage, "bench",
                fmt::format("--update: {} has {} hosts, and what all of them write together is not "
                            "measured on one",
                            name, cluster.hosts))
        .hint(
            "leave --update out, and set storage.read_bandwidth and storage.write_bandwidth by "
            "hand");
  }
}

}  // namespace

plan::Cluster ComparedCluster::load(int ranks, Measured measured) const {
  const bool file = !name.empty() && !plan::cluster_preset(name);
  if (update && !file) {
    throw Error(ErrorKind::kUsage, "bench",
                "--update: name with --cluster the file that takes the figures")
        .hint("`shoal plan calibrate` writes one");
  }
  if (name.empty()) return cpu_host(ranks);
  plan::Cluster cluster = load_cluster(name);
  if (file && cluster.devices_per_host != ranks) {
    Error error(ErrorKind::kUsage, "bench",
                fmt::format("--cluster {}: its hosts have {} ranks at work, and {} {} measured",
                            name, cluster.devices_per_host, ranks, ranks == 1 ? "is" : "are"));
    if (cluster.devices_per_host <= kMostRanks)
      error.hint(fmt::format("--nproc {}", cluster.devices_per_host));
    throw error;
  }
  if (update) check_update(name, cluster, measured);
  return cluster;
}

void ComparedCluster::write(const plan::Cluster& cluster) const {
  const auto before = read_text(name);
  const auto tcp = before ? train::parse_link_costs(*before, name) : std::nullopt;
  const std::string text = cluster_text(cluster, tcp);
  // Read before the old file is gone: what cannot be read must not take its place.
  parse_cluster(text, name);
  replace_text(name, text, "bench");
}

std::string ComparedCluster::called(const plan::Cluster& cluster) const {
  return name.empty() ? "the preset " + cluster.name : name;
}

std::string cluster_text(const plan::Cluster& cluster,
                         const std::optional<collective::CostModel>& tcp) {
  std::string text = to_toml(cluster);
  if (!tcp) return text;
  text +=
      "\n# parallelism.link_costs of a job reads this. `shoal plan calibrate` measures nothing "
      "between hosts: what it\n# writes there is 10-gigabit Ethernet's.\n" +
      train::link_costs_section(*tcp);
  return text;
}

}  // namespace shoal::apps
