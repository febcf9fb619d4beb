#include "apps/shoal/job_data.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>

#include "apps/shoal/cores.h"
#include "apps/shoal/progress_line.h"
#include "shoal/data/dataset.h"
#include "shoal/data/headers.h"
#include "shoal/data/manifest.h"
#include "shoal/data/prepare.h"
#include "shoal/train/config/validate.h"

namespace shoal::apps {
namespace {

/// Ranks that another launcher starts all come here; one prepares, and the others give it this long.
constexpr Duration kPreparation = std::chrono::hours(2);

}  // namespace

void prepare_job_data(const train::Job& job, bool tell) {
  const train::DataSection& section = job.config.data;
  if (section.source != "tokens" || section.prepare == "nothing") return;
  const std::string& folder = section.folders.at(0);
  if (std::filesystem::exists(folder + "/" + data::kManifestFile)) return;
  data::PrepareOptions options;
  options.out = folder;
  options.inputs = section.prepare_from;
  if (section.prepare == "headers") options.headers = data::default_header_folder();
  if (section.prepare == "headers" && options.headers.empty())
    throw train::complaint(job, "data.prepare", "this program was built without Torch, and so without its headers");
  options.tokenizer = section.tokenizer == "byte" ? data::TokenizerKind::kBytes : data::TokenizerKind::kBpe;
  options.vocab_size = static_cast<std::uint32_t>(section.vocab_size);
  options.threads = cores_of_this_process().usable();
  options.patience = kPreparation;
  if (!tell) return void(data::prepare(options));
  fmt::print("preparing {} from {}\n", folder,
             section.prepare == "headers" ? "the C++ headers of Torch" : fmt::format("{}", section.prepare_from.front()));
  std::fflush(stdout);
  ProgressLine line;
  const auto result = data::prepare(options, [&](const std::string& stage, std::uint64_t done, std::uint64_t total) { line(stage, done, total); });
  for (const auto& [name, split] : result.manifest.splits) fmt::print("{}: {} tokens of {} files\n", name, split.tokens, split.documents);
}

void check_job_data(const train::Job& job) {
  if (job.config.data.source != "tokens") return;
  const std::uint64_t needed = job.config.training.sequence_length + 1;
  for (const std::string& folder : job.config.data.folders) {
    const auto tokens = data::TokenDataset::open(folder, "train", data::Check::kHeaders);
    if (tokens.tokens() < needed)
      throw train::complaint(job, "training.sequence_length",
                             fmt::format("{} has {} training tokens, and one sample takes {}", folder, tokens.tokens(), needed));
    train::model_spec(job, {.vocab = tokens.vocab_size()});
  }
}

}  // namespace shoal::apps
