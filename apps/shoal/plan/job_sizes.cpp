#include "apps/shoal/plan/job_sizes.h"

#include <fmt/format.h>

#include <filesystem>

#include "shoal/data/dataset.h"
#include "shoal/data/manifest.h"
#include "shoal/data/tokenizer.h"
#include "shoal/train/config/job_inputs.h"

namespace shoal::apps {
namespace {

JobSizes sizes_of_tokens(const train::Job& job) {
  const train::DataSection& data = job.config.data;
  if (!data.folders.empty()) {
    const std::string& folder = data.folders.front();
    if (std::filesystem::exists(folder + "/" + data::kManifestFile))
      return {
          {.vocab = data::TokenDataset::open(folder, "train", data::Check::kHeaders).vocab_size()}};
  }
  const bool prepares = data.prepare != train::DataPreparation::kNothing;
  if (prepares && data.tokenizer == train::TokenizerChoice::kByte)
    return {{.vocab = data::byte_tokenizer()->vocab_size()}};
  // The number of entries of any other tokenizer is not certain: a vocabulary that the job says is
  // not compared with it.
  if (train::sizes_from_data(job).empty()) return {};
  return {
      {.vocab = data.vocab_size},
      fmt::format("The data of {} is not prepared yet: the plan assumes a tokenizer of {} entries "
                  "(data.vocab_size); --set model.vocab=N sets another number.",
                  job.file, data.vocab_size)};
}

JobSizes sizes_of_table(const train::Job& job) {
  if (train::sizes_from_data(job).empty()) return {};
  // Made on the fly: as many rows as the job wants, which no size depends on.
  if (job.config.data.source == train::DataKind::kRegression)
    return {{.inputs = job.config.data.features, .outputs = 1}};
  return {train::sizes_of(train::read_job_table(job))};
}

}  // namespace

JobSizes sizes_of_job(const train::Job& job) {
  return job.config.data.source == train::DataKind::kTokens ? sizes_of_tokens(job)
                                                            : sizes_of_table(job);
}

}  // namespace shoal::apps
