#include <fmt/chrono.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "apps/shoal/command.h"
#include "shoal/base/check.h"
#include "shoal/base/clock.h"
#include "shoal/base/duration.h"
#include "shoal/base/error.h"
#include "shoal/checkpoint/format/difference.h"
#include "shoal/checkpoint/format/gguf/model.h"
#include "shoal/checkpoint/format/hugging_face.h"
#include "shoal/checkpoint/format/reader.h"
#include "shoal/checkpoint/format/reshard.h"
#include "shoal/checkpoint/format/store.h"
#include "shoal/checkpoint/format/value_checksum.h"
#include "shoal/data/manifest.h"
#include "shoal/train/config/exported_text.h"
#include "shoal/train/config/model_source.h"
#include "shoal/train/config/source_weights.h"

namespace shoal::apps {
namespace {

using namespace checkpoint::format;
using Json = nlohmann::ordered_json;

constexpr const char* kPathHelp =
    "A checkpoint, or a folder of checkpoints or run directory: its newest";

std::string size_text(std::int64_t bytes) {
  const char* units[] = {"B", "kB", "MB", "GB", "TB"};
  double size = static_cast<double>(bytes);
  int unit = 0;
  while (size >= 1000 && unit < 4) size /= 1000, ++unit;
  return unit == 0 ? fmt::format("{} B", bytes) : fmt::format("{:.1f} {}", size, units[unit]);
}

std::int64_t file_bytes(const Manifest& manifest) {
  std::int64_t bytes = 0;
  for (const DataFile& file : manifest.files) bytes += file.bytes;
  return bytes;
}

/// Elements of the model's own tensors, and of all.
std::pair<std::int64_t, std::int64_t> elements(const Manifest& manifest) {
  std::int64_t model = 0;
  std::int64_t all = 0;
  for (const LogicalTensor& tensor : manifest.tensors) {
    all += count_of(tensor.shape);
    if (tensor.name.starts_with("model.")) model += count_of(tensor.shape);
  }
  return {model, all};
}

// The manifest is written last, so its time is that of the checkpoint.
std::string saved_at(const std::string& checkpoint) {
  struct stat status {};
  if (::stat((checkpoint + "/" + kManifestName).c_str(), &status) != 0) return "?";
  return fmt::format("{:%Y-%m-%d %H:%M:%S}", fmt::localtime(status.st_mtime));
}

/// The checkpoints at `path`: that of a checkpoint itself, those of a folder, those of a run
/// directory.
std::vector<Step> steps_at(const std::string& path) {
  for (const std::string& folder : {path, path + "/checkpoints"})
    if (auto steps = list_steps(folder); !steps.empty()) return steps;
  const std::string one = resolve_checkpoint(path);
  return {{read_manifest(one).step, one}};
}

void list(const std::string& path, bool json) {
  Json all = Json::array();
  if (!json) {
    fmt::print("{:>10}  {:>8}  {:>14}  {:>10}  {:>5}  {:<19}  {}\n", "step", "tensors",
               "parameters", "size", "files", "saved", "path");
  }
  for (const Step& step : steps_at(path)) {
    const Manifest manifest = read_manifest(step.path);
    const auto [model, total] = elements(manifest);
    if (json) {
      all.push_back({{"step", step.step},
                     {"path", step.path},
                     {"tensors", manifest.tensors.size()},
                     {"parameters", model},
                     {"elements", total},
                     {"bytes", file_bytes(manifest)},
                     {"files", manifest.files.size()}});
    } else {
      fmt::print("{:>10}  {:>8}  {:>14}  {:>10}  {:>5}  {:<19}  {}\n", step.step,
                 manifest.tensors.size(), model, size_text(file_bytes(manifest)),
                 manifest.files.size(), saved_at(step.path), step.path);
    }
  }
  if (json) fmt::print("{}\n", all.dump(1));
}

Json tensor_json(const LogicalTensor& tensor) {
  return {{"name", tensor.name},
          {"type", name(tensor.type)},
          {"shape", tensor.shape},
          {"checksum", hex(tensor.checksum())}};
}

void show_json(const std::string& path, const Manifest& manifest) {
  Json root{{"path", path},
            {"step", manifest.step},
            {"metadata", Json::parse(manifest.metadata)},
            {"files", Json::array()},
            {"tensors", Json::array()}};
  for (const DataFile& file : manifest.files)
    root["files"].push_back({{"name", file.name}, {"bytes", file.bytes}});
  for (const LogicalTensor& tensor : manifest.tensors)
    root["tensors"].push_back(tensor_json(tensor));
  fmt::print("{}\n", root.dump(1));
}

void show_text(const std::string& path, const Manifest& manifest) {
  const auto [model, total] = elements(manifest);
  fmt::print(
      "checkpoint  {}\nstep        {}\nsaved       {}\nsize        {} in {} files\nparameters  {} "
      "of {} elements\n",
      path, manifest.step, saved_at(path), size_text(file_bytes(manifest)), manifest.files.size(),
      model, total);
  // The job file can be long: print what fits on a line, `--json` has all of it.
  const Json metadata = Json::parse(manifest.metadata);
  for (const auto& [key, value] : metadata.items()) {
    const std::string text = value.dump();
    fmt::print("{:<10}  {}\n", key,
               text.size() <= 120 ? text : fmt::format("({} characters, see --json)", text.size()));
  }
  std::size_t width = 0;
  for (const LogicalTensor& tensor : manifest.tensors) width = std::max(width, tensor.name.size());
  fmt::print("\n{:<{}}  {:<8}  {:<20}  {:<16}  {}\n", "tensor", width, "type", "shape", "checksum",
             "pieces");
  for (const LogicalTensor& tensor : manifest.tensors) {
    fmt::print("{:<{}}  {:<8}  {:<20}  {:<16}  {}\n", tensor.name, width, name(tensor.type),
               text(tensor.shape), hex(tensor.checksum()), tensor.pieces.size());
  }
}

void verify(const std::string& path) {
  const auto begin = Clock::now();
  std::int64_t bytes = 0;
  Reader reader(path);
  reader.verify([&](std::int64_t done) { bytes = done; });
  const double seconds = to_seconds(Clock::now() - begin);
  fmt::print(
      "{}: {} tensors, {} verified in {:.2f} s ({}/s)\n", path, reader.manifest().tensors.size(),
      size_text(bytes), seconds,
      size_text(static_cast<std::int64_t>(static_cast<double>(bytes) / std::max(seconds, 1e-9))));
}

std::string describe(const Difference& difference) {
  switch (difference.kind) {
    case Difference::Kind::kOnlyFirst:
      return "only in the first: " + difference.first;
    case Difference::Kind::kOnlySecond:
      return "only in the second: " + difference.second;
    case Difference::Kind::kForm:
      return difference.first + " in the first, " + difference.second + " in the second";
    default:
      return fmt::format("{} of {} elements differ{}", difference.elements, difference.count,
                         difference.largest_apart
                             ? fmt::format(", by {:.6g} at most", *difference.largest_apart)
                             : "");
  }
}

/// True when nothing differs.
bool print_differences(const std::string& first, const std::string& second) {
  Reader a(first);
  Reader b(second);
  const auto differences = compare(a, b);
  for (const Difference& difference : differences)
    fmt::print("{}: {}\n", difference.name, describe(difference));
  if (differences.empty())
    fmt::print("the same {} tensors, bit for bit\n", a.manifest().tensors.size());
  return differences.empty();
}

/// The tokenizer of a model. If Shoal cannot carry it out it says why on stderr: the weights are of
/// use without it.
std::shared_ptr<const data::Tokenizer> tokenizer_or_words(const train::ModelSource& source) {
  try {
    return train::tokenizer_of(source);
  } catch (const Error& error) {
    fmt::print(stderr, "without the tokenizer: {}\n", error.what());
    return nullptr;
  }
}

/// Says on stderr why an export has no tokenizer; `reason` is that of the format.
void print_left_out(const data::Tokenizer* tokenizer, const std::string& path,
                    const std::string& reason) {
  if (!tokenizer) {
    fmt::print(stderr, "no tokenizer: none lies beside {}\n", path);
  } else if (tokenizer->hugging_face_files().empty()) {
    fmt::print(stderr,
               "no tokenizer: other programs have no files for Shoal's own, '{}' ('shoal data "
               "prepare --tokenizer DIR' prepares text with one of Hugging Face)\n",
               tokenizer->name());
  } else if (!reason.empty()) {
    fmt::print(stderr, "no tokenizer: {}\n", reason);
  }
}

/// Rewrites a model of any kind as a Hugging Face folder, or as a GGUF file where `to` is the name
/// of one.
void export_model(const std::string& path, const std::string& to, const std::string& type) {
  const train::ModelSource source = train::find_model(path);
  const auto tokenizer = tokenizer_or_words(source);
  const FolderText text = tokenizer ? train::folder_text(*tokenizer) : FolderText{};
  const train::SourceWeights weights(source, fmt::format("{}.weights-{}", to, ::getpid()));
  Reader reader(weights.checkpoint());
  std::string left_out;
  if (train::is_gguf(to)) {
    left_out =
        gguf::export_model(reader, to, text, *gguf::written_type(type.empty() ? "f16" : type));
  } else {
    SHOAL_USER_CHECK(
        type.empty(), "ckpt export",
        "--type is for GGUF files: a Hugging Face folder has the type of the checkpoint");
    export_hugging_face(reader, to, text);
  }
  print_left_out(tokenizer.get(), source.path, left_out);
  fmt::print("{}\n", to);
}

void import_model(const std::string& path, const std::string& directory) {
  const train::ModelSource source{path, train::is_gguf(path)
                                            ? train::ModelSource::Kind::kGguf
                                            : train::ModelSource::Kind::kHuggingFace};
  const std::string checkpoint = train::is_gguf(path) ? gguf::import_model(path, directory)
                                                      : import_hugging_face(path, directory);
  if (const auto tokenizer = tokenizer_or_words(source))
    tokenizer->save(directory + "/" + data::kTokenizerFile);
  fmt::print("{}\n", checkpoint);
}

/// The arguments of the subcommands.
struct Arguments {
  std::string path, other, type;
  bool json = false;
  int files = 1;
};

CLI::App* add(CLI::App& ckpt, Arguments& arguments, const char* name, const char* help) {
  CLI::App* command = ckpt.add_subcommand(name, help);
  command->add_option("path", arguments.path, kPathHelp)->required();
  return command;
}

void add_rewriting(CLI::App& ckpt, const std::shared_ptr<Arguments>& arguments) {
  Arguments& a = *arguments;
  CLI::App* reshard_command =
      add(ckpt, a, "reshard", "Rewrite a checkpoint into another number of files");
  reshard_command->add_option("to", a.other, "The folder that gets step-<n>")->required();
  reshard_command->add_option("--files", a.files, "Number of data files")
      ->capture_default_str()
      ->check(CLI::PositiveNumber);
  reshard_command->callback([arguments] {
    Reader reader(resolve_checkpoint(arguments->path));
    fmt::print("{}\n", reshard(reader, arguments->other, arguments->files));
  });
  CLI::App* export_command =
      add(ckpt, a, "export",
          "Write the model with its tokenizer as a Hugging Face folder or a GGUF file");
  export_command->add_option("to", a.other, "The folder to write, or a file that ends in .gguf")
      ->required();
  export_command->add_option("--type", a.type, "How a GGUF file holds matrices (f16 unless said)")
      ->check(CLI::IsMember({"f32", "f16", "bf16", "q8_0"}));
  export_command->callback(
      [arguments] { export_model(arguments->path, arguments->other, arguments->type); });
  CLI::App* import_command = ckpt.add_subcommand(
      "import",
      "Make a checkpoint, with its tokenizer, of a Hugging Face folder (GPT-2, Llama, Mistral, "
      "Mixtral, Qwen2, Qwen3, GLM-4.5) or a GGUF file (gpt2, llama, qwen2, qwen3)");
  import_command
      ->add_option("path", a.path, "The folder with config.json and model.safetensors, or the file")
      ->required();
  import_command->add_option("to", a.other, "The folder that gets step-0")->required();
  import_command->callback([arguments] { import_model(arguments->path, arguments->other); });
}

}  // namespace

void add_ckpt_command(CLI::App& program, int& exit_code) {
  const auto arguments = std::make_shared<Arguments>();
  Arguments& a = *arguments;
  CLI::App* ckpt = program.add_subcommand("ckpt", "Look into checkpoints and rewrite them");
  ckpt->require_subcommand(1);

  CLI::App* ls = add(*ckpt, a, "ls", "List the checkpoints of a folder or run");
  ls->add_flag("--json", a.json, "As JSON");
  ls->callback([arguments] { list(arguments->path, arguments->json); });

  CLI::App* show = add(*ckpt, a, "show",
                       "Every logical tensor with its shape, type and a checksum of its values "
                       "that does not depend on sharding");
  show->add_flag("--json", a.json, "As JSON, with all metadata");
  show->callback([arguments] {
    const std::string path = resolve_checkpoint(arguments->path);
    (arguments->json ? show_json : show_text)(path, read_manifest(path));
  });

  add(*ckpt, a, "verify", "Read everything and check it")->callback([arguments] {
    verify(resolve_checkpoint(arguments->path));
  });

  CLI::App* diff = add(*ckpt, a, "diff",
                       "What differs between two checkpoints, however they are sharded; exit code "
                       "1 where something does");
  diff->add_option("other", a.other, kPathHelp)->required();
  diff->callback([arguments, &exit_code] {
    if (!print_differences(resolve_checkpoint(arguments->path),
                           resolve_checkpoint(arguments->other)))
      exit_code = 1;
  });
  add_rewriting(*ckpt, arguments);
}

}  // namespace shoal::apps
