#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace shoal::apps {

/// Expands a list of nodes as Slurm writes it: "n[1-3,07],m" names n1, n2, n3, n07 and m. A name
/// may hold several brackets. Throws Error(config) when the text is no such list, or names more
/// than 100,000 nodes.
std::vector<std::string> expand_node_list(std::string_view text);

/// Returns how many tasks the `node`-th node has: Slurm writes "2(x3),1" for two tasks on each of
/// three nodes, then one. Empty when the text does not say.
std::optional<int> tasks_on_node(std::string_view text, int node);

/// Returns a port that all ranks of one job step compute alike, from 20,000 to 29,999: below those
/// that Linux gives to connections. Other steps on the same nodes mostly get another one.
int slurm_port(const std::string& job, const std::string& step);

/// Asks Slurm to start job `job` again from the beginning (`scontrol requeue`), waits at most 30 s
/// for it, and says on stdout, or on stderr when it fails, what came of it.
void requeue_slurm_job(const std::string& job);

}  // namespace shoal::apps
