#include "apps/shoal/rank_environment.h"

#include <fmt/format.h>

#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "apps/shoal/slurm.h"
#include "shoal/base/error.h"
#include "shoal/base/hex.h"
#include "shoal/base/number.h"
#include "shoal/wire/key_derivation.h"

namespace shoal::apps {
namespace {

Error broken(const std::string& launcher, const std::string& what) {
  return Error(ErrorKind::kConfig, "launcher",
               fmt::format("{}'s environment is incomplete or broken: {}", launcher, what));
}

/// Reads the variables of one launcher.
struct Reader {
  const Environment& environment;
  std::string launcher;

  std::string text(const char* name) const {
    const char* value = environment(name);
    return value ? value : "";
  }
  int number(const char* name) const {
    const std::string value = text(name);
    if (value.empty()) throw broken(launcher, fmt::format("{} is not set", name));
    const auto result = parse_number<int>(value);
    if (!result || *result < 0)
      throw broken(launcher, fmt::format("{}={} is no whole number of at least 0", name, value));
    return *result;
  }
  /// The values of the variables that are set, as one short word. Every rank of one start computes
  /// the same key without having met. If the launcher tells them apart, another start of the same
  /// job computes another one.
  std::string key(std::initializer_list<const char*> names) const {
    std::string joined = launcher;
    for (const char* name : names) joined += fmt::format("|{}={}", name, text(name));
    return hashed(joined);
  }
  static std::string hashed(const std::string& joined) {
    const auto key = wire::derive_key(joined, "shoal", "job key");
    // 128 bits, which no search goes through.
    return hex(std::span(key).first<16>());
  }
};

RankEnvironment of_torchrun(const Reader& reader) {
  RankEnvironment result{reader.launcher,
                         reader.number("RANK"),
                         reader.number("WORLD_SIZE"),
                         reader.number("LOCAL_RANK"),
                         reader.number("LOCAL_WORLD_SIZE"),
                         {},
                         {},
                         {}};
  // torchrun always counts its restarts.
  result.by_hand = reader.environment("TORCHELASTIC_RESTART_COUNT") == nullptr;
  result.error_file = reader.text("TORCHELASTIC_ERROR_FILE");
  // .../<random>/attempt_0/<local rank>/error.json: the folder is new in every start, where run id
  // and port may repeat. Each host has its own, so it can only tell starts apart where all ranks
  // are on one.
  std::string folder = result.local_world == result.world ? result.error_file : "";
  for (int i = 0; i < 2; ++i) {
    folder = folder.substr(
        0, folder.find_last_of('/') == std::string::npos ? 0 : folder.find_last_of('/'));
  }
  result.job_key = Reader::hashed(reader.key({"TORCHELASTIC_RUN_ID", "MASTER_ADDR", "MASTER_PORT",
                                              "TORCHELASTIC_RESTART_COUNT"}) +
                                  "|" + folder);
  return result;
}

RankEnvironment of_slurm(const Reader& reader) {
  RankEnvironment result{reader.launcher,
                         reader.number("SLURM_PROCID"),
                         reader.number("SLURM_STEP_NUM_TASKS"),
                         reader.number("SLURM_LOCALID"),
                         1,
                         {},
                         {},
                         {}};
  const std::string tasks = reader.text("SLURM_STEP_TASKS_PER_NODE");
  const int node = reader.number("SLURM_NODEID");
  const auto here = tasks_on_node(tasks, node);
  if (!here) {
    throw broken(reader.launcher,
                 fmt::format("SLURM_STEP_TASKS_PER_NODE={} does not say how many tasks node {} has",
                             tasks, node));
  }
  result.local_world = *here;
  result.job_key = reader.key({"SLURM_JOB_ID", "SLURM_STEP_ID", "SLURM_RESTART_COUNT"});
  return result;
}

RankEnvironment of_open_mpi(const Reader& reader) {
  return {reader.launcher,
          reader.number("OMPI_COMM_WORLD_RANK"),
          reader.number("OMPI_COMM_WORLD_SIZE"),
          reader.number("OMPI_COMM_WORLD_LOCAL_RANK"),
          reader.number("OMPI_COMM_WORLD_LOCAL_SIZE"),
          reader.key({"PMIX_NAMESPACE", "PMIX_SERVER_URI2", "OMPI_MCA_ess_base_jobid",
                      "OMPI_MCA_orte_hnp_uri"}),
          {},
          {}};
}

/// A pod a rank, or LOCAL_WORLD_SIZE ranks a pod. Training operators set RANK; a Job of completion
/// mode Indexed has its index.
RankEnvironment of_kubernetes(const Reader& reader) {
  const bool indexed = reader.text("RANK").empty();
  RankEnvironment result{reader.launcher,
                         reader.number(indexed ? "JOB_COMPLETION_INDEX" : "RANK"),
                         reader.number("WORLD_SIZE"),
                         0,
                         1,
                         {},
                         {},
                         {}};
  if (!reader.text("LOCAL_WORLD_SIZE").empty()) {
    result.local_rank = reader.number("LOCAL_RANK"),
    result.local_world = reader.number("LOCAL_WORLD_SIZE");
  }
  result.job_key = reader.key({"MASTER_ADDR", "MASTER_PORT", "WORLD_SIZE"});
  return result;
}

/// The address of a job step's first node, on which rank 0 is; empty: Slurm does not say.
std::string first_node(const Reader& reader) {
  if (reader.launcher != "Slurm") return "";
  std::string nodes = reader.text("SLURM_STEP_NODELIST");
  if (nodes.empty()) nodes = reader.text("SLURM_JOB_NODELIST");
  return nodes.empty() ? "" : expand_node_list(nodes).front();
}

/// Fills in where ranks of several hosts meet.
void find_rendezvous(const Reader& reader, RankEnvironment& found) {
  // What launchers tell every rank can be guessed by who sees it; this cannot.
  if (const std::string secret = reader.text("SHOAL_JOB_KEY"); !secret.empty())
    found.job_key = Reader::hashed(found.job_key + "|" + secret);
  found.rendezvous = reader.text("SHOAL_RENDEZVOUS");
  if (!found.rendezvous.empty()) found.rendezvous_source = "SHOAL_RENDEZVOUS";
  if (!found.rendezvous.empty() || found.local_world == found.world) return;
  std::string address = reader.text("MASTER_ADDR");
  found.rendezvous_source =
      address.empty() ? "Slurm's list of nodes" : "MASTER_ADDR and MASTER_PORT";
  if (address.empty()) address = first_node(reader);
  if (address.empty()) {
    throw broken(reader.launcher, fmt::format("its {} ranks are on several hosts, and neither "
                                              "SHOAL_RENDEZVOUS nor MASTER_ADDR is set",
                                              found.world))
        .hint(
            "set MASTER_ADDR to an address of rank 0's host and MASTER_PORT to a port that is free "
            "there, for all ranks");
  }
  // torchrun's own store listens on MASTER_PORT: ours takes the next one.
  const bool chooses = reader.launcher == "Slurm" && reader.text("MASTER_PORT").empty();
  const std::int64_t port =
      chooses
          ? slurm_port(reader.text("SLURM_JOB_ID"), reader.text("SLURM_STEP_ID"))
          : std::int64_t{reader.number("MASTER_PORT")} + (reader.launcher == "torchrun" ? 1 : 0);
  if (port < 1 || port > 65535) throw broken(reader.launcher, fmt::format("port {} is none", port));
  // An IPv6 address needs brackets, or its last group would be taken for the port.
  const bool six = address.find(':') != std::string::npos && address.front() != '[';
  found.rendezvous =
      six ? fmt::format("[{}]:{}", address, port) : fmt::format("{}:{}", address, port);
}

}  // namespace

std::optional<RankEnvironment> detect_rank_environment(const Environment& environment,
                                                       bool by_mpi) {
  const auto set = [&](const char* name) { return environment(name) != nullptr; };
  std::optional<RankEnvironment> found;
  // The innermost launcher counts: torchrun is itself started by srun on each host.
  if (set("TORCHELASTIC_RUN_ID")) {
    found = of_torchrun({environment, "torchrun"});
  } else if (set("OMPI_COMM_WORLD_RANK")) {
    found = of_open_mpi({environment, "Open MPI"});
  } else if (set("SLURM_STEP_NUM_TASKS") && set("SLURM_PROCID")) {
    found = of_slurm({environment, "Slurm"});
  } else if (set("KUBERNETES_SERVICE_HOST") && set("WORLD_SIZE") &&
             (set("RANK") || set("JOB_COMPLETION_INDEX"))) {
    found = of_kubernetes({environment, "Kubernetes"});
  }
  if (!found) return found;
  // Checked here, because a rank that does not exist would be waited for until the time limit.
  if (found->rank >= found->world)
    throw broken(found->launcher, fmt::format("rank {} of {}", found->rank, found->world));
  if (found->local_rank >= found->local_world || found->local_world > found->world) {
    throw broken(found->launcher, fmt::format("local rank {} of {} on this host, of {} in all",
                                              found->local_rank, found->local_world, found->world));
  }
  if (!by_mpi) find_rendezvous({environment, found->launcher}, *found);
  return found;
}

std::optional<RankEnvironment> detect_rank_environment(bool by_mpi) {
  return detect_rank_environment([](const char* name) { return std::getenv(name); }, by_mpi);
}

std::string ignored_rank_variables(const Environment& environment) {
  const char* rank = environment("RANK");
  const char* world = environment("WORLD_SIZE");
  if (!rank || !world || parse_number<int>(world).value_or(1) < 2) return "";
  return fmt::format(
      "RANK={} of WORLD_SIZE={} is set, and no launcher is recognised: this process trains alone. "
      "Hint: set TORCHELASTIC_RUN_ID too, to any name that all ranks share, or unset both",
      rank, world);
}

std::string ignored_rank_variables() {
  return ignored_rank_variables([](const char* name) { return std::getenv(name); });
}

std::string slurm_job_of_this_process() {
  const char* job = std::getenv("SLURM_JOB_ID");
  return job ? job : "";
}

}  // namespace shoal::apps
