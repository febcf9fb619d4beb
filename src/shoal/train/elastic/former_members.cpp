#include "shoal/train/elastic/former_members.h"

#include <fmt/format.h>
#include <poll.h>

#include <algorithm>
#include <chrono>
#include <fstream>

#include "shoal/base/clock.h"
#include "shoal/base/error.h"
#include "shoal/train/run_directory.h"

namespace shoal::train {
namespace {

constexpr Duration kTimeToConnect = std::chrono::seconds(2);

bool is_refused(const wire::Endpoint& member, Deadline deadline) {
  try {
    const wire::Descriptor socket = wire::begin_connect(member);
    pollfd ready{socket.get(), POLLOUT, 0};
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(deadline.left());
    if (poll(&ready, 1, static_cast<int>(std::max<long long>(left.count(), 0))) != 1) return false;
    wire::check_connected(socket.get(), member);
  } catch (const wire::ConnectionRefused&) {
    return true;
  } catch (const Error&) {
    // There is no way to it now, which says nothing of whether it is there.
  }
  return false;
}

}  // namespace

void write_former_members(const std::string& path, const std::vector<wire::Endpoint>& members) {
  std::string lines;
  for (const wire::Endpoint& member : members) lines += member.text() + "\n";
  write_whole(path, lines);
}

std::vector<wire::Endpoint> read_former_members(const std::string& path) {
  std::vector<wire::Endpoint> members;
  std::ifstream in(path);
  for (std::string line; std::getline(in, line);) {
    try {
      members.push_back(wire::parse_endpoint(line));
    } catch (const Error& error) {
      throw Error(ErrorKind::kData, "elastic", fmt::format("{}: {}", path, error.message()));
    }
  }
  return members;
}

std::vector<wire::Endpoint> not_refused(const std::vector<wire::Endpoint>& members) {
  const Deadline deadline = Deadline::in(kTimeToConnect);
  std::vector<wire::Endpoint> others;
  for (const wire::Endpoint& member : members)
    if (!is_refused(member, deadline)) others.push_back(member);
  return others;
}

}  // namespace shoal::train
