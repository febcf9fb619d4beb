#include <fmt/format.h>
#include <fmt/ranges.h>
#include <spdlog/version.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/statvfs.h>
#include <sys/utsname.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <optional>
#include <sstream>

#include "apps/shoal/app_library.h"
#include "apps/shoal/command.h"
#include "apps/shoal/cores.h"
#include "apps/shoal/rank_environment.h"
#include "apps/shoal/torch/entry.h"
#include "shoal/base/control_groups.h"
#include "shoal/base/error.h"
#include "shoal/base/instruction_sets.h"
#include "shoal/base/units.h"

namespace shoal::apps {
namespace {

/// Prints what is found and collects the problems.
struct Findings {
  std::vector<std::string> problems;

  void show(const char* what, const std::string& text) const {
    fmt::print("{:<12} {}\n", what, text);
  }
  void add_problem(std::string problem) { problems.push_back(std::move(problem)); }
};

/// Returns the value behind "key :" in the first line of `file` that starts with it.
std::string field(const char* file, const std::string& key) {
  std::ifstream stream(file);
  for (std::string line; std::getline(stream, line);) {
    if (line.compare(0, key.size(), key) != 0) continue;
    const auto colon = line.find(':');
    const auto begin =
        colon == std::string::npos ? std::string::npos : line.find_first_not_of(" \t", colon + 1);
    return begin == std::string::npos ? "" : line.substr(begin);
  }
  return "";
}

double meminfo_gib(const char* key) {
  std::istringstream text(field("/proc/meminfo", key));
  double kib = 0;
  text >> kib;
  return kib * 1024 / kGiB;
}

void show_processor(Findings& findings) {
  const Cores cores = cores_of_this_process();
  findings.show("processor", field("/proc/cpuinfo", "model name"));
  const std::string quota =
      cores.quota > 0
          ? fmt::format(", {:.2f} cores' time granted by the control group", cores.quota)
          : "";
  findings.show("cores", fmt::format("{} usable of {} online (affinity {}){}", cores.usable(),
                                     ::sysconf(_SC_NPROCESSORS_ONLN), cores.list.size(), quota));
  // Kernels, ours and the libraries', choose by these flags; a missing one explains slowness.
  std::istringstream flags(field("/proc/cpuinfo", "flags"));
  const std::vector<std::string> all{std::istream_iterator<std::string>(flags), {}};
  std::vector<std::string> present;
  std::vector<std::string> absent;
  for (const char* flag :
       {"avx2", "fma", "f16c", "avx512f", "avx512bw", "avx512_vnni", "avx512_bf16", "amx_bf16"})
    (std::find(all.begin(), all.end(), flag) == all.end() ? absent : present).push_back(flag);
  findings.show("vectors",
                fmt::format("{} (not {})", fmt::join(present, " "), fmt::join(absent, " ")));
  const char* limit = std::getenv("SHOAL_CPU");
  findings.show("", fmt::format("in use: {} ({})", instruction_set_in_use(),
                                limit == nullptr ? "SHOAL_CPU sets no limit"
                                                 : fmt::format("SHOAL_CPU={}", limit)));
  if (!all.empty() && std::find(all.begin(), all.end(), "avx2") == all.end())
    findings.add_problem("no AVX2: products run several times slower");
}

void show_memory(Findings& findings) {
  const double total = meminfo_gib("MemTotal");
  const double available = meminfo_gib("MemAvailable");
  const auto limit = memory_limit(control_groups("memory"));
  findings.show("memory",
                fmt::format("{:.1f} GiB, {:.1f} available, control group: {}", total, available,
                            limit ? fmt::format("{:.1f} GiB", static_cast<double>(*limit) / kGiB)
                                  : "no limit"));
  if (available < 2)
    findings.add_problem(fmt::format("only {:.1f} GiB of memory are available", available));
  struct statvfs shared = {};
  if (::statvfs("/dev/shm", &shared) == 0) {
    const double size = static_cast<double>(shared.f_blocks) * shared.f_frsize / kGiB;
    const double free = static_cast<double>(shared.f_bavail) * shared.f_frsize / kGiB;
    findings.show("/dev/shm", fmt::format("{:.2f} GiB, {:.2f} free", size, free));
  } else {
    findings.show("/dev/shm", "none");
  }
  const int file = ::memfd_create("shoal-env", 0);
  if (file < 0) {
    findings.add_problem(
        "memfd_create fails: ranks cannot share memory (parallelism.arena = false needs it too)");
  }
  if (file >= 0) ::close(file);
  // An arena maps far more addresses than memory: a limit of the address space makes it small.
  rlimit space{};
  rlimit files{};
  ::getrlimit(RLIMIT_AS, &space);
  ::getrlimit(RLIMIT_NOFILE, &files);
  const auto text_of = [](rlim_t value) {
    return value == RLIM_INFINITY ? std::string("unlimited") : fmt::format("{}", value);
  };
  findings.show("limits", fmt::format("address space {}, open files {}", text_of(space.rlim_cur),
                                      text_of(files.rlim_cur)));
  if (space.rlim_cur != RLIM_INFINITY)
    findings.add_problem("the address space is limited (ulimit -v): the arena will be small");
  if (files.rlim_cur < 256) findings.add_problem("few open files are allowed (ulimit -n)");
}

/// Returns the part of `text` between `begin` and `end`; "?" when it has none.
std::string after(const std::string& text, const std::string& begin, const std::string& end) {
  const auto at = text.find(begin);
  if (at == std::string::npos) return "?";
  return text.substr(at + begin.size(), text.find(end, at + begin.size()) - at - begin.size());
}

/// Returns the path of a library that this process has loaded.
std::string mapped_file(const std::string& name) {
  std::ifstream maps("/proc/self/maps");
  for (std::string line; std::getline(maps, line);) {
    if (line.size() > name.size() &&
        line.compare(line.size() - name.size(), name.size(), name) == 0)
      return line.substr(line.find('/'));
  }
  return "not loaded";
}

void show_software(Findings& findings) {
  utsname system{};
  ::uname(&system);
  findings.show("system", fmt::format("{} {} {}", system.sysname, system.release, system.machine));
  findings.show("shoal", fmt::format("{}, {}", version(), program_path()));
  findings.show("libraries",
                fmt::format("g++ {}, fmt {}.{}.{}, spdlog {}.{}.{}, CLI11 {}", __VERSION__,
                            FMT_VERSION / 10000, FMT_VERSION / 100 % 100, FMT_VERSION % 100,
                            SPDLOG_VER_MAJOR, SPDLOG_VER_MINOR, SPDLOG_VER_PATCH, CLI11_VERSION));
  try {
    // Loading it is the test: whatever is missing below it is in the loader's message.
    const AppLibrary library;
    const std::string described = library.entry<const char*()>("shoal_torch_description")();
    const std::string torch = mapped_file("libtorch_cpu.so");
    const std::string number = after(described, "TORCH_VERSION=", ",");
    findings.show("torch", fmt::format("{}, {}", number, torch));
    findings.show(
        "", fmt::format("vectors {}, BLAS {}, oneDNN {}, {}",
                        after(described, "CPU capability usage: ", "\n"),
                        after(described, "BLAS_INFO=", ","), after(described, "MKL-DNN ", " "),
                        after(described, "ATen parallel backend: ", "\n")));
    const std::string mpi = library.entry<const char*()>("shoal_mpi_description")();
    findings.show("MPI", mpi.empty() ? "built without" : mpi);
  } catch (const Error& error) {
    findings.show("torch", "not loaded");
    findings.add_problem(error.what());
  }
}

void show_launcher(Findings& findings) {
  try {
    const auto found = detect_rank_environment();
    findings.show("launcher", found ? fmt::format("{}: rank {} of {}, {} of {} on this host",
                                                  found->launcher, found->rank, found->world,
                                                  found->local_rank, found->local_world)
                                    : "none: `shoal train --nproc N` starts ranks itself");
    if (found && !found->rendezvous.empty()) findings.show("rendezvous", found->rendezvous);
  } catch (const Error& error) {
    findings.show("launcher", "broken");
    findings.add_problem(error.what());
  }
}

}  // namespace

void add_env_command(CLI::App& program) {
  CLI::App* command = program.add_subcommand(
      "env", "Show what Shoal finds on this machine, and what is wrong with it");
  command->callback([] {
    Findings findings;
    show_processor(findings);
    show_memory(findings);
    show_software(findings);
    show_launcher(findings);
    if (findings.problems.empty()) fmt::print("\nNothing is wrong with it.\n");
    if (!findings.problems.empty()) fmt::print("\nWrong with it:\n");
    for (const auto& problem : findings.problems) fmt::print("  - {}\n", problem);
  });
}

}  // namespace shoal::apps
