#include "shoal/train/elastic/run_state.h"

#include <ATen/Parallel.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstring>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "shoal/base/check.h"
#include "shoal/collective/membership/view.h"
#include "shoal/model/model_json.h"
#include "shoal/train/config/elastic.h"

namespace shoal::train {
namespace {

using Bytes = std::span<const std::byte>;

/// Is hashed by one thread at a time.
constexpr std::size_t kBlockBytes = 1 << 20;
constexpr std::size_t kSizes = 2 * sizeof(std::uint64_t);

/// Returns all that the digest covers beside the values.
std::string header_of(const RunRecord& record, const std::vector<checkpoint::StateItem>& items) {
  RunRecord common = record;
  common.instruction_set.clear();
  common.job.clear();
  common.job_file.clear();
  nlohmann::json tensors = nlohmann::json::array();
  for (const checkpoint::StateItem& item : items) {
    tensors.push_back({item.name, c10::toString(item.local.scalar_type()),
                       static_cast<std::uint64_t>(item.local.nbytes())});
  }
  return nlohmann::json{{"record", common.to_json()}, {"tensors", tensors}}.dump();
}

Bytes bytes_of(const at::Tensor& tensor) {
  SHOAL_CHECK(tensor.is_contiguous(), "a tensor of the state is not contiguous");
  return {static_cast<const std::byte*>(tensor.const_data_ptr()), tensor.nbytes()};
}

/// Returns a digest of the header and of the digests of blocks, so that threads share the work.
Digest digest_of_parts(const std::string& header, const std::vector<Bytes>& tensors) {
  std::vector<Bytes> blocks;
  for (const Bytes& tensor : tensors) {
    for (std::size_t at = 0; at < tensor.size(); at += kBlockBytes)
      blocks.push_back(tensor.subspan(at, std::min(kBlockBytes, tensor.size() - at)));
  }
  std::vector<Digest> digests(blocks.size() + 1);
  digests[0] = collective::membership::digest(std::as_bytes(std::span(header)));
  at::parallel_for(0, static_cast<std::int64_t>(blocks.size()), 1,
                   [&](std::int64_t begin, std::int64_t end) {
                     for (std::int64_t i = begin; i < end; ++i) {
                       const auto block = static_cast<std::size_t>(i);
                       digests[block + 1] = collective::membership::digest(blocks[block]);
                     }
                   });
  return collective::membership::digest(std::as_bytes(std::span(digests)));
}

/// The parts of bytes that `write` has made.
struct Parts {
  std::string header, trailer;
  std::vector<Bytes> tensors;
};

/// Returns nothing for bytes that are no state.
std::optional<Parts> parts_of(Bytes bytes) {
  std::uint64_t sizes[2];
  if (bytes.size() < kSizes) return std::nullopt;
  std::memcpy(sizes, bytes.data(), kSizes);
  bytes = bytes.subspan(kSizes);
  Parts parts;
  for (const auto& [text, size] :
       {std::pair{&parts.header, sizes[0]}, std::pair{&parts.trailer, sizes[1]}}) {
    if (size > bytes.size()) return std::nullopt;
    text->assign(reinterpret_cast<const char*>(bytes.data()), size);
    bytes = bytes.subspan(size);
  }
  try {
    const auto header = nlohmann::json::parse(parts.header);
    for (const auto& tensor : header.at("tensors")) {
      const std::uint64_t size = tensor.at(2);
      if (size > bytes.size()) return std::nullopt;
      parts.tensors.push_back(bytes.first(size));
      bytes = bytes.subspan(size);
    }
  } catch (const nlohmann::json::exception&) {
    return std::nullopt;
  }
  if (!bytes.empty()) return std::nullopt;
  return parts;
}

/// The record of the group, with its job.
RunRecord record_of(const Parts& parts) {
  const std::string origin = "the state that the group has sent";
  try {
    RunRecord record =
        parse_record(nlohmann::json::parse(parts.header).at("record").get<std::string>(), origin);
    const auto trailer = nlohmann::json::parse(parts.trailer);
    record.job = trailer.at("job").get<std::string>();
    record.job_file = trailer.at("job_file").get<std::string>();
    record.instruction_set = trailer.at("instruction_set").get<std::string>();
    return record;
  } catch (const nlohmann::json::exception& error) {
    throw Error(ErrorKind::kData, "elastic", fmt::format("{}: {}", origin, error.what()));
  }
}

void check_same_job(const RunRecord& group, const RunRecord& own) {
  std::vector<std::string> differences = keys_that_differ(
      parse_job(group.job, group.job_file).config, parse_job(own.job, own.job_file).config);
  const auto theirs = nlohmann::json::parse(model::to_json(group.model));
  const auto ours = nlohmann::json::parse(model::to_json(own.model));
  for (const auto& [key, value] : ours.items()) {
    const auto other = theirs.contains(key) ? theirs.at(key) : nlohmann::json();
    if (key != "name" && other != value) {
      differences.push_back(
          fmt::format("model.{} is {} there and {} here", key, other.dump(), value.dump()));
    }
  }
  if (differences.empty() && group.data != own.data) {
    differences.push_back(
        fmt::format("the contents of the data have the fingerprint {:016x} there and {:016x} here",
                    group.data, own.data));
  }
  if (!differences.empty()) {
    throw Error(ErrorKind::kConfig, "elastic",
                fmt::format("the group trains another job: {}", fmt::join(differences, "; ")))
        .hint("all members take the same job file; places and checkpoints may differ");
  }
  if (group.instruction_set == own.instruction_set) return;
  throw Error(ErrorKind::kConfig, "elastic",
              fmt::format("the members that are there compute with {} and this one with {}, which "
                          "does not give the same bits",
                          group.instruction_set, own.instruction_set))
      .hint("SHOAL_CPU limits the instruction sets of a process: give all the smallest one");
}

}  // namespace

StateTensors tensors_of(TrainingState& state) {
  return {[&state] { return state.items_to_save(); }, [&state] { return state.items_to_fill(); },
          [&state] { state.take_filled(); }};
}

Digest RunState::digest_with(const RunRecord& record,
                             const std::vector<checkpoint::StateItem>& items) {
  std::vector<Bytes> tensors;
  for (const checkpoint::StateItem& item : items) tensors.push_back(bytes_of(item.local));
  return digest_of_parts(header_of(record, items), tensors);
}

std::vector<std::byte> RunState::write(const RunRecord& record) const {
  const std::vector<checkpoint::StateItem> items = tensors_.to_save();
  const std::string header = header_of(record, items);
  const std::string trailer = nlohmann::json{
      {"job", record.job},
      {"job_file", record.job_file},
      {"instruction_set",
       record.instruction_set}}.dump();
  const std::uint64_t sizes[2] = {header.size(), trailer.size()};
  std::size_t size = kSizes + header.size() + trailer.size();
  for (const checkpoint::StateItem& item : items) size += item.local.nbytes();
  std::vector<std::byte> bytes;
  bytes.reserve(size);
  const auto put = [&](Bytes part) { bytes.insert(bytes.end(), part.begin(), part.end()); };
  put(std::as_bytes(std::span(sizes)));
  put(std::as_bytes(std::span(header)));
  put(std::as_bytes(std::span(trailer)));
  for (const checkpoint::StateItem& item : items) put(bytes_of(item.local));
  return bytes;
}

Digest RunState::digest_of(Bytes bytes) {
  const std::optional<Parts> parts = parts_of(bytes);
  return parts ? digest_of_parts(parts->header, parts->tensors) : Digest{};
}

RunRecord RunState::read(Bytes bytes, const RunRecord& own) {
  const std::optional<Parts> parts = parts_of(bytes);
  if (!parts)
    throw Error(ErrorKind::kData, "elastic", "the group has sent what is no state of a run");
  const RunRecord record = record_of(*parts);
  check_same_job(record, own);
  const std::vector<checkpoint::StateItem> items = tensors_.to_fill();
  const auto theirs = nlohmann::json::parse(parts->header).at("tensors");
  const auto ours = nlohmann::json::parse(header_of(record, items)).at("tensors");
  if (theirs != ours) {
    std::size_t first = 0;
    while (first < ours.size() && first < theirs.size() && ours[first] == theirs[first]) ++first;
    const auto text = [&](const nlohmann::json& list) {
      return first < list.size() ? list[first].dump() : std::string("nothing");
    };
    throw Error(ErrorKind::kData, "elastic",
                fmt::format("tensor {} of the group's state (name, type, bytes) is {}, and {} here",
                            first, text(theirs), text(ours)));
  }
  for (std::size_t i = 0; i < items.size(); ++i) {
    const Bytes from = parts->tensors[i];
    if (!from.empty()) std::memcpy(items[i].local.data_ptr(), from.data(), from.size());
  }
  tensors_.take_filled();
  return record;
}

}  // namespace shoal::train
