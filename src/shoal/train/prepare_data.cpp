#include "shoal/train/prepare_data.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <thread>

#include "shoal/base/clock.h"
#include "shoal/data/headers.h"
#include "shoal/data/manifest.h"
#include "shoal/data/prepare.h"
#include "shoal/train/progress.h"

namespace shoal::train {

void prepare_data(const Job& job, const std::function<void(const std::string&)>& say) {
  const DataSection& section = job.config.data;
  if (section.source != "tokens" || section.prepare == "nothing") return;
  const std::string& folder = section.folders.at(0);
  if (std::filesystem::exists(folder + "/" + data::kManifestFile)) return;
  data::PrepareOptions options;
  options.out = folder;
  options.inputs = section.prepare_from;
  if (section.prepare == "headers") options.headers = data::default_header_folder();
  options.tokenizer = section.tokenizer == "byte" ? data::TokenizerKind::kBytes : data::TokenizerKind::kBpe;
  options.vocab_size = static_cast<std::uint32_t>(section.vocab_size);
  options.threads = static_cast<int>(std::max(1u, std::thread::hardware_concurrency()));
  say(fmt::format("Preparing {} ({}).", folder, section.prepare == "headers" ? "the C++ headers of LibTorch" : "files"));
  const auto begin = Clock::now();
  const auto result = data::prepare(options);
  const auto& train = result.manifest.splits.at("train");
  const auto& validation = result.manifest.splits.at("validation");
  say(fmt::format("Prepared in {}: {} training and {} validation tokens, {} entries in the tokenizer.", spoken(Clock::now() - begin), train.tokens,
                  validation.tokens, result.manifest.vocab_size));
}

}  // namespace shoal::train
