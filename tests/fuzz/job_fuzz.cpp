#include "shoal/train/config/job_file.h"
#include "tests/fuzz/fuzz.h"

// Job files; behind a line that begins with "--set" what the command line changes in them.
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace shoal;
  std::string text = fuzz::text_of(data, size);
  std::vector<std::string> sets;
  if (const auto at = text.find("\n--set "); at != std::string::npos) {
    sets.push_back(text.substr(at + 7));
    text.resize(at);
  }
  train::Job job;
  if (!fuzz::accepted([&] { job = train::parse_job(text, "job.toml", sets); })) return 0;
  const std::string written = train::to_toml(job.config);
  fuzz::must(train::to_toml(train::parse_job(written, "job.toml").config) == written,
             "a job reads as it is written");
  fuzz::must(!train::print_config(job).empty(), "a job can be shown");
  return 0;
}
