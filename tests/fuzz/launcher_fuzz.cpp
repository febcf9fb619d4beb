#include <fcntl.h>
#include <fuzzer/FuzzedDataProvider.h>
#include <unistd.h>

#include <map>

#include "apps/shoal/failure_report.h"
#include "apps/shoal/rank_environment.h"
#include "tests/fuzz/fuzz.h"

// The two inputs of the launcher: the failure report of a rank, over a pipe, and the environment of
// another launcher.
namespace shoal::apps {
namespace {

void read_report(const std::string& bytes) {
  int ends[2];
  fuzz::must(pipe2(ends, O_NONBLOCK | O_CLOEXEC) == 0, "a pipe");
  [[maybe_unused]] const auto written = write(ends[1], bytes.data(), bytes.size());
  const auto last = read_failure_report(ends[0]);
  if (last) {
    write_failure_report(ends[1], *last);
    const auto again = read_failure_report(ends[0]);
    fuzz::must(again && again->code == last->code && again->time_ns == last->time_ns &&
                   again->about_a_peer == last->about_a_peer,
               "a failure report is read as it was written");
  }
  close(ends[0]), close(ends[1]);
}

void detect(FuzzedDataProvider& input) {
  constexpr const char* kNames[] = {"RANK",
                                    "WORLD_SIZE",
                                    "LOCAL_RANK",
                                    "LOCAL_WORLD_SIZE",
                                    "TORCHELASTIC_RUN_ID",
                                    "TORCHELASTIC_ERROR_FILE",
                                    "TORCHELASTIC_RESTART_COUNT",
                                    "MASTER_ADDR",
                                    "MASTER_PORT",
                                    "SLURM_PROCID",
                                    "SLURM_STEP_NUM_TASKS",
                                    "SLURM_LOCALID",
                                    "SLURM_STEP_TASKS_PER_NODE",
                                    "SLURM_NODEID",
                                    "SLURM_JOB_ID",
                                    "SLURM_STEP_ID",
                                    "SLURM_RESTART_COUNT",
                                    "SLURM_STEP_NODELIST",
                                    "OMPI_COMM_WORLD_RANK",
                                    "OMPI_COMM_WORLD_SIZE",
                                    "OMPI_COMM_WORLD_LOCAL_RANK",
                                    "OMPI_COMM_WORLD_LOCAL_SIZE",
                                    "PMIX_NAMESPACE",
                                    "SHOAL_RENDEZVOUS",
                                    "SHOAL_JOB_KEY"};
  std::map<std::string, std::string> variables;
  while (input.remaining_bytes() > 0) {
    std::string& value = variables[input.PickValueInArray(kNames)];
    value = input.ConsumeBool() ? std::to_string(input.ConsumeIntegralInRange(0, 4))
                                : input.ConsumeRandomLengthString(32);
  }
  fuzz::accepted([&] {
    const auto found = detect_rank_environment([&](const char* name) {
      const auto entry = variables.find(name);
      return entry == variables.end() ? nullptr : entry->second.c_str();
    });
    if (!found) return;
    fuzz::must(found->rank >= 0 && found->rank < found->world, "a rank is one of the world");
    fuzz::must(found->local_rank >= 0 && found->local_rank < found->local_world &&
                   found->local_world <= found->world,
               "and one of its host");
  });
}

}  // namespace
}  // namespace shoal::apps

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  FuzzedDataProvider input(data, size);
  input.ConsumeBool() ? shoal::apps::read_report(input.ConsumeRemainingBytesAsString())
                      : shoal::apps::detect(input);
  return 0;
}
