#include "apps/shoal/watch/job_watch.h"

#include <fmt/format.h>

#include <chrono>
#include <cstdio>
#include <utility>

#include "apps/shoal/watch/http_request.h"
#include "apps/shoal/watch/job_requests.h"
#include "apps/shoal/watch/job_status.h"
#include "apps/shoal/watch/last_run.h"
#include "apps/shoal/watch/prometheus_text.h"
#include "apps/shoal/watch/run_socket.h"
#include "apps/shoal/watch/run_summary.h"
#include "shoal/base/error.h"
#include "shoal/wire/address.h"

namespace shoal::apps {
namespace {

Listener control_listener(const WatchedJob& job) {
  const JobRequests requests(job.board, job.launcher);
  return {listen_in(job.run_directory), true,
          [requests](std::string_view received) { return requests.answer(received); }};
}

/// Opens the port that metrics.prometheus names; an error names that key.
wire::Descriptor metrics_socket(const std::string& place) {
  const wire::Endpoint at = wire::parse_endpoint(place);
  try {
    return wire::listen_on(at.host, {at.port, at.port});
  } catch (const Error& error) {
    throw Error(error.kind(), "job",
                fmt::format("metrics.prometheus = \"{}\": {}", place, error.message()))
        .hint("name a free port of this machine, or port 0 for any");
  }
}

Listener metrics_listener(const WatchedJob& job) {
  wire::Descriptor socket = metrics_socket(job.prometheus);
  fmt::print("Prometheus: http://{}/metrics\n", wire::local_endpoint(socket.get()).text());
  std::fflush(stdout);
  const auto metrics = [job] {
    RunSummary summary = read_run_files(job.run_directory);
    summary.job = read_job_status(job.board, job.launcher);
    return prometheus_text(summary);
  };
  return {std::move(socket), false, [metrics](std::string_view received) {
            return answer_metrics_request(received, metrics);
          }};
}

}  // namespace

JobWatch::JobWatch(WatchedJob job) : job_(std::move(job)) { forget_last_run(job_.run_directory); }

void JobWatch::listen() {
  if (!job_.prometheus.empty()) listeners_.push_back(metrics_listener(job_));
  try {
    listeners_.push_back(control_listener(job_));
  } catch (const Error& error) {
    fmt::print(stderr, "shoal: this job cannot be watched: {}\n", error.what());
  }
}

JobWatch::~JobWatch() {
  server_.reset();
  remove_socket(job_.run_directory);
}

void JobWatch::serve() {
  if (listeners_.empty()) return;
  try {
    server_.emplace(std::move(listeners_));
  } catch (const Error& error) {
    fmt::print(stderr, "shoal: this job cannot be watched: {}\n", error.what());
  }
}

void JobWatch::ended(int code) {
  server_.reset();
  remove_socket(job_.run_directory);
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  write_last_run(job_.run_directory,
                 {.code = code,
                  .ended = std::chrono::duration_cast<std::chrono::seconds>(now).count(),
                  .total_steps = job_.board.run->total_steps,
                  .ranks = static_cast<int>(job_.board.ranks.size()),
                  .cause = cause_});
}

}  // namespace shoal::apps
