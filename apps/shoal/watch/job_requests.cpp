#include "apps/shoal/watch/job_requests.h"

#include <atomic>
#include <utility>

#include "apps/shoal/watch/job_status.h"

namespace shoal::apps {

JobRequests::JobRequests(const train::RunBoard& board, std::string launcher)
    : board_(board), launcher_(std::move(launcher)) {}

std::optional<std::string> JobRequests::answer(std::string_view received) const {
  const std::size_t end = received.substr(0, kLongest).find('\n');
  if (end != std::string_view::npos) return carry_out(received.substr(0, end)) + "\n";
  if (received.size() < kLongest) return std::nullopt;
  return "{\"error\": \"the request is too long\"}\n";
}

std::string JobRequests::carry_out(std::string_view request) const {
  std::int64_t number = 0;
  if (request == "stop") {
    board_.run->stop_asked = true;
  } else if (request == "save") {
    number = ++board_.run->saves_asked;
  } else if (request == "flights") {
    number = ++board_.run->flights_asked;
  } else if (request != "status") {
    return "{\"error\": \"the requests are status, stop, save and flights\"}";
  }
  JobStatus status = read_job_status(board_, launcher_);
  status.request = number;
  return to_json(status);
}

}  // namespace shoal::apps
