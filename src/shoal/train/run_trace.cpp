#include "shoal/train/run_trace.h"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <utility>

#include "shoal/train/machine_peak.h"
#include "shoal/train/run_directory.h"

namespace shoal::train {
namespace {

constexpr auto kPeakTime = std::chrono::milliseconds(100);

/// Sets the times of a rank's recording to the clock of rank 0.
void align(SpanLog& log, const comm::ClockOffset& before, const comm::ClockOffset& after) {
  const auto set = [&](std::int64_t& time) {
    if (time != 0) time -= comm::offset_at(before, after, time - before.offset_ns);
  };
  for (Span& span : log.spans) {
    set(span.begin);
    set(span.end);
  }
  for (Transfer& transfer : log.transfers) {
    set(transfer.begin);
    set(transfer.end);
  }
}

std::vector<double> from_all(const comm::Group& group, double value) {
  const at::Tensor own = at::empty({1}, at::kDouble);
  const at::Tensor all = at::empty({group.size()}, at::kDouble);
  *own.data_ptr<double>() = value;
  group.all_gather(all, own);
  const auto* values = all.const_data_ptr<double>();
  return {values, values + group.size()};
}

}  // namespace

RunTrace::RunTrace(comm::Group group) : group_(std::move(group)) { recorder_.install(); }

void RunTrace::plan(TraceHead head, std::string path) {
  head_ = std::move(head);
  path_ = std::move(path);
}

void RunTrace::begin_step(std::int64_t step) {
  if (head_.last_step == 0) return;
  if (!recording_ && step >= head_.first_step && step <= head_.last_step) {
    // Nothing is in flight between steps, so that messages are counted alike on both ends.
    before_ = comm::measure_clock_offsets(group_);
    head_.first_step = step;
    recorder_.start();
    recording_ = true;
  }
  if (recording_) step_ = step;
}

bool RunTrace::end_step(std::int64_t step) { return step >= head_.last_step && finish(); }

bool RunTrace::finish() {
  if (!recording_) return false;
  recording_ = false;
  head_.last_step = step_;
  write();
  // One file for each start of the run.
  head_.last_step = 0;
  return true;
}

void RunTrace::write() {
  recorder_.stop();
  const std::vector<comm::ClockOffset> after = comm::measure_clock_offsets(group_);
  // All at the same time, as they compute in a step.
  group_.barrier();
  head_.peak_flops = from_all(group_, measure_plain_flops(kPeakTime));
  head_.peak_bytes = from_all(group_, measure_plain_bandwidth(kPeakTime));
  const std::vector<SpanLog> logs = gather(after);
  if (group_.rank() != 0) return;
  for (std::size_t rank = 1; rank < after.size(); ++rank) {
    // Two ranks are each wrong by their own error.
    const double error =
        static_cast<double>(std::max(before_[rank].error_ns, after[rank].error_ns));
    head_.clock_error_us = std::max(head_.clock_error_us, 2e-3 * error);
  }
  write_whole(path_, trace_json(head_, logs));
}

std::vector<SpanLog> RunTrace::gather(const std::vector<comm::ClockOffset>& after) const {
  constexpr std::uint32_t kTag = 0x7ffffffd;
  const std::vector<std::byte> own = pack(recorder_);
  const std::vector<double> sizes = from_all(group_, static_cast<double>(own.size()));
  std::vector<SpanLog> logs;
  if (group_.rank() != 0) {
    const at::Tensor bytes = at::empty({static_cast<std::int64_t>(own.size())}, at::kByte);
    std::memcpy(bytes.data_ptr(), own.data(), own.size());
    group_.send(bytes, 0, kTag);
    return logs;
  }
  logs.push_back(SpanLog::unpack(own));
  for (int rank = 1; rank < group_.size(); ++rank) {
    const auto index = static_cast<std::size_t>(rank);
    const at::Tensor bytes = at::empty({static_cast<std::int64_t>(sizes[index])}, at::kByte);
    group_.recv(bytes, rank, kTag);
    logs.push_back(SpanLog::unpack({static_cast<const std::byte*>(bytes.const_data_ptr()),
                                    static_cast<std::size_t>(bytes.numel())}));
    align(logs.back(), before_[index], after[index]);
  }
  return logs;
}

}  // namespace shoal::train
