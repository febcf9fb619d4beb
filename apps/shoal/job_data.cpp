#include "apps/shoal/job_data.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>

#include "apps/shoal/cores.h"
#include "apps/shoal/progress_line.h"
#include "shoal/data/headers.h"
#include "shoal/data/manifest.h"
#include "shoal/data/prepare.h"
#include "shoal/train/config/model_source.h"
#include "shoal/train/config/validate.h"

namespace shoal::apps {
namespace {

/// Data that is there already must be made as the job says; `data prepare` refuses a folder of
/// other data too.
void check_prepared(const train::Job& job, const data::PrepareOptions& options) {
  const std::pair<const char*, const char*> keys[] = {{"corpus", "data.prepare"},
                                                      {"inputs", "data.prepare_from"},
                                                      {"tokenizer", "data.tokenizer"},
                                                      {"vocab_size", "data.vocab_size"}};
  const auto others = data::prepared_otherwise(options);
  std::string first;
  std::string text;
  for (const auto& [option, key] : keys) {
    const auto other = others.find(option);
    if (other == others.end()) continue;
    if (first.empty()) first = key;
    text += fmt::format("{}{} was {}", text.empty() ? "" : ", ", key, other->second);
  }
  if (!first.empty()) {
    throw train::config_error(
        job, first,
        fmt::format("{} holds a data set that was prepared otherwise: {}", options.out, text))
        .hint(
            "name another folder in data.folders, or delete that one; data.prepare = \"nothing\" "
            "takes it as it is");
  }
}

/// Ranks that another launcher starts all come here; one prepares, and the others give it this
/// long.
constexpr Duration kPreparation = std::chrono::hours(2);

}  // namespace

void prepare_job_data(const train::Job& job, bool announce) {
  const train::DataSection& section = job.config.data;
  using train::DataPreparation;
  const bool prepares = section.prepare != DataPreparation::kNothing;
  if (section.source != train::DataKind::kTokens || !prepares) return;
  const bool from_headers = section.prepare == DataPreparation::kHeaders;
  const std::string& folder = section.folders.at(0);
  const bool prepared = std::filesystem::exists(folder + "/" + data::kManifestFile);
  data::PrepareOptions options;
  options.out = folder;
  options.inputs = section.prepare_from;
  // Which headers there are matters only to whoever prepares them.
  if (from_headers)
    options.headers = prepared ? "the headers of Torch" : data::default_header_folder();
  if (section.tokenizer == train::TokenizerChoice::kByte) {
    options.tokenizer = data::TokenizerKind::kBytes;
  } else if (section.tokenizer == train::TokenizerChoice::kModel) {
    options.tokenizer = data::TokenizerKind::kGiven;
    options.given = train::tokenizer_of(train::find_model(job.config.model.from));
    if (!options.given) {
      throw train::config_error(job, "data.tokenizer",
                                fmt::format("{} has no tokenizer", job.config.model.from));
    }
  }
  options.vocab_size = static_cast<std::uint32_t>(section.vocab_size);
  if (from_headers && options.headers.empty()) {
    throw train::config_error(job, "data.prepare",
                              "this program was built without Torch, and so without its headers");
  }
  // The manifest is written last: a folder that has one is whole.
  if (prepared) return check_prepared(job, options);
  options.threads = cores_of_this_process().usable();
  options.patience = kPreparation;
  if (!announce) {
    data::prepare(options);
    return;
  }
  fmt::print(
      "preparing {} from {}\n", folder,
      from_headers ? "the C++ headers of Torch" : fmt::format("{}", section.prepare_from.front()));
  std::fflush(stdout);
  ProgressLine line;
  const auto result =
      data::prepare(options, [&](const std::string& stage, std::uint64_t done,
                                 std::uint64_t total) { line(stage, done, total); });
  if (!result.binary_files.empty()) {
    const data::BinaryFile& first = result.binary_files.front();
    fmt::print(
        "left out are {} files that look binary, the first is {} ({}); `shoal data prepare "
        "--binary` keeps such files\n",
        result.binary_files.size(), first.name, first.reason);
  }
  for (const auto& [name, split] : result.manifest.splits)
    fmt::print("{}: {} tokens of {} files\n", name, split.tokens, split.documents);
}

}  // namespace shoal::apps
