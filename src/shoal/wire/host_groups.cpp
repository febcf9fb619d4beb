#include "shoal/wire/host_groups.h"

#include <fmt/format.h>
#include <unistd.h>

#include <map>
#include <set>

#include "shoal/base/error.h"
#include "shoal/base/running_kernel.h"

namespace shoal::wire {
namespace {

/// Names the running kernel, the namespaces and the user of this process: equal only for processes
/// that can share memory through a rendezvous. Empty where it cannot be known.
std::string kernel_and_namespaces() {
  const std::string boot = running_kernel();
  const auto files = namespace_of_this_process("mnt");
  const auto processes = namespace_of_this_process("pid");
  return boot.empty() || files == 0 || processes == 0
             ? ""
             : fmt::format("{}/{}/{}/{}", boot, files, processes, getuid());
}

std::vector<std::string> exchange(KeyValues& store, const std::string& prefix, int rank, int size,
                                  const std::string& own, Deadline deadline) {
  const auto key = [&](int r) { return fmt::format("{}/{}", prefix, r); };
  // Every rank stores before it waits, so no order of arrival can deadlock.
  store.set(key(rank), own, deadline);
  std::vector<std::string> keys;
  for (int r = 0; r < size; ++r) keys.push_back(key(r));
  const auto values = store.wait_all(keys, deadline, [] {});
  std::vector<std::string> all;
  std::string missing;
  for (int r = 0; r < size; ++r) {
    const auto& value = values[static_cast<std::size_t>(r)];
    if (!value) missing += fmt::format(" {}", r);
    all.push_back(value.value_or(""));
  }
  if (!missing.empty()) {
    throw Error(ErrorKind::kTimeout, "connect", "these ranks did not come:" + missing)
        .at(rank, size)
        .hint("look at their logs");
  }
  return all;
}

}  // namespace

std::vector<int> propose_hosts(KeyValues& store, int rank, int size, const std::string& name,
                               Deadline deadline) {
  const std::string here = kernel_and_namespaces();
  const auto all =
      exchange(store, "host", rank, size, here.empty() ? "" : here + "/" + name, deadline);
  std::map<std::string, int> known;
  std::vector<int> hosts;
  for (int r = 0; r < size; ++r)
    hosts.push_back(all[r].empty() ? r : known.try_emplace(all[r], r).first->second);
  return hosts;
}

std::vector<int> agree_on_hosts(KeyValues& store, int rank, const std::vector<int>& proposed,
                                bool proven, Deadline deadline) {
  const int size = static_cast<int>(proposed.size());
  const auto all = exchange(store, "shares", rank, size, proven ? "yes" : "no", deadline);
  // One rank's no ends the host for all its ranks: both ends of a connection must choose the same
  // transport, and all ranks compute this from the same values.
  std::set<int> refuted;
  for (int r = 0; r < size; ++r)
    if (all[r] != "yes") refuted.insert(proposed[r]);
  std::vector<int> hosts;
  for (int r = 0; r < size; ++r) hosts.push_back(refuted.contains(proposed[r]) ? r : proposed[r]);
  return hosts;
}

}  // namespace shoal::wire
