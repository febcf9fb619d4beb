#include "shoal/checkpoint/format/manifest.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "shoal/base/check.h"
#include "shoal/checkpoint/format/file.h"
#include "shoal/checkpoint/format/strict_json.h"
#include "shoal/checkpoint/format/value_checksum.h"

namespace shoal::checkpoint::format {
namespace {

using nlohmann::json;

constexpr const char* kFormat = "shoal checkpoint";
constexpr int kVersion = 1;
constexpr std::int64_t kLongestManifest = std::int64_t{1} << 30;

std::int64_t blocks_of(std::int64_t count) { return (count + kBlockElements - 1) / kBlockElements; }

json piece_json(const Piece& piece) {
  json blocks = json::array();
  for (const auto block : piece.blocks) blocks.push_back(hex(block));
  return {{"file", piece.file},
          {"name", piece.name},
          {"begin", piece.box.begin},
          {"end", piece.box.end},
          {"blocks", std::move(blocks)}};
}

json tensor_json(const LogicalTensor& tensor) {
  json pieces = json::array();
  for (const Piece& piece : tensor.pieces) pieces.push_back(piece_json(piece));
  return {{"type", name(tensor.type)},
          {"shape", tensor.shape},
          {"checksum", hex(tensor.checksum())},
          {"pieces", std::move(pieces)}};
}

Piece parse_piece(const json& value, const LogicalTensor& tensor, std::size_t files,
                  const std::string& where) {
  Piece piece;
  const std::int64_t file = whole_number(field(value, "file", where), where + ": file");
  if (file >= static_cast<std::int64_t>(files))
    throw broken(where, fmt::format("lies in file {} of {}", file, files));
  piece.file = static_cast<int>(file);
  piece.name = string_value(field(value, "name", where), where + ": name");
  piece.box = {whole_numbers(field(value, "begin", where), where + ": begin"),
               whole_numbers(field(value, "end", where), where + ": end")};
  if (!fits(piece.box, tensor.shape)) {
    throw broken(where, fmt::format("box {} to {} does not lie in {}", text(piece.box.begin),
                                    text(piece.box.end), text(tensor.shape)));
  }
  const json& blocks = field(value, "blocks", where);
  if (!blocks.is_array()) throw broken(where, "blocks: a list of checksums is expected");
  for (const json& block : blocks)
    piece.blocks.push_back(checksum_value(block, where + ": blocks"));
  if (static_cast<std::int64_t>(piece.blocks.size()) != blocks_of(piece.box.count())) {
    throw broken(where, fmt::format("{} block checksums for {} elements", piece.blocks.size(),
                                    piece.box.count()));
  }
  return piece;
}

LogicalTensor parse_tensor(const std::string& name, const json& value, std::size_t files,
                           const std::string& path) {
  const std::string where = fmt::format("'{}': tensor '{}'", path, name);
  LogicalTensor tensor{.name = name};
  const std::string type_name = string_value(field(value, "type", where), where + ": type");
  const auto type = element_type(type_name);
  if (!type || type == ElementType::kC128)
    throw broken(where, fmt::format("type '{}' is not known", type_name));
  tensor.type = *type;
  tensor.shape = whole_numbers(field(value, "shape", where), where + ": shape");
  // Everything that follows multiplies sizes of the shape: it must not overflow.
  std::int64_t bytes = static_cast<std::int64_t>(size_of(tensor.type));
  for (const auto size : tensor.shape) {
    if (__builtin_mul_overflow(bytes, size, &bytes))
      throw broken(where, fmt::format("shape {} is too large", text(tensor.shape)));
  }
  const json& pieces = field(value, "pieces", where);
  if (!pieces.is_array()) throw broken(where, "pieces: a list is expected");
  for (const json& piece : pieces)
    tensor.pieces.push_back(parse_piece(piece, tensor, files, where));
  // A reader copies only what the pieces hold: a gap would leave memory uninitialised.
  if (const std::string fault = coverage_fault(tensor); !fault.empty()) throw broken(where, fault);
  if (tensor.checksum() != checksum_value(field(value, "checksum", where), where + ": checksum"))
    throw broken(where, "its checksum is not that of its blocks");
  return tensor;
}

DataFile parse_file(const json& value, const std::string& path) {
  const std::string where = fmt::format("'{}': files", path);
  DataFile file{
      .name = string_value(field(value, "name", where), where + ": name"),
      .bytes = whole_number(field(value, "bytes", where), where + ": bytes"),
      .header_checksum = checksum_value(field(value, "header", where), where + ": header")};
  // A manifest may come from anywhere: it must not reach outside its own folder.
  if (file.name.empty() || file.name.front() == '.' ||
      file.name.find_first_of(std::string_view("/\0", 2)) != std::string::npos)
    throw broken(where, fmt::format("'{}' is not the name of a file of the checkpoint", file.name));
  return file;
}

}  // namespace

std::uint64_t Piece::checksum() const {
  std::uint64_t sum = 0;
  for (const auto block : blocks) sum += block;
  return sum;
}

std::uint64_t LogicalTensor::checksum() const {
  std::uint64_t sum = 0;
  for (const Piece& piece : pieces) sum += piece.checksum();
  return sum;
}

const LogicalTensor* Manifest::find(std::string_view name) const {
  const auto found = std::lower_bound(
      tensors.begin(), tensors.end(), name,
      [](const LogicalTensor& tensor, std::string_view key) { return tensor.name < key; });
  return found == tensors.end() || found->name != name ? nullptr : &*found;
}

std::string piece_name(std::string_view tensor, const Box& box, const Shape& shape) {
  return std::string(tensor) + (box == whole(shape) ? "" : text(box));
}

std::string coverage_fault(const LogicalTensor& tensor) {
  std::vector<const Piece*> pieces;
  std::int64_t count = 0;
  for (const Piece& piece : tensor.pieces) {
    if (!fits(piece.box, tensor.shape))
      return fmt::format("piece {} does not lie in {}", text(piece.box), text(tensor.shape));
    if (piece.box.count() > 0) pieces.push_back(&piece);
    // Each addend is at most count_of(shape), so that this stops long before it could overflow.
    count += piece.box.count();
    if (count > count_of(tensor.shape)) break;
  }
  // After sorting by the first dimension a piece is compared only with those that begin before it
  // ends there. A tensor of many pieces would take quadratic time otherwise.
  if (!tensor.shape.empty()) {
    std::sort(pieces.begin(), pieces.end(),
              [](const Piece* a, const Piece* b) { return a->box.begin[0] < b->box.begin[0]; });
  }
  for (std::size_t i = 0; i < pieces.size(); ++i) {
    for (std::size_t j = i + 1;
         j < pieces.size() &&
         (tensor.shape.empty() || pieces[j]->box.begin[0] < pieces[i]->box.end[0]);
         ++j) {
      if (intersect(pieces[i]->box, pieces[j]->box).count() > 0) {
        return fmt::format("two pieces overlap: {} and {}", text(pieces[i]->box),
                           text(pieces[j]->box));
      }
    }
  }
  // No overlap and the right number of elements: every element is covered exactly once.
  if (count != count_of(tensor.shape)) {
    return fmt::format("the pieces hold {} of {} elements of {}", count, count_of(tensor.shape),
                       text(tensor.shape));
  }
  return "";
}

std::string to_json(Manifest& manifest) {
  const json metadata = json::parse(manifest.metadata, nullptr, false);
  SHOAL_USER_CHECK(metadata.is_object(), "checkpoint", "metadata is not a JSON object: {:.80}",
                   manifest.metadata);
  std::sort(manifest.tensors.begin(), manifest.tensors.end(),
            [](const LogicalTensor& a, const LogicalTensor& b) { return a.name < b.name; });
  json files = json::array();
  json tensors = json::object();
  for (const DataFile& file : manifest.files) {
    files.push_back(
        {{"name", file.name}, {"bytes", file.bytes}, {"header", hex(file.header_checksum)}});
  }
  for (const LogicalTensor& tensor : manifest.tensors) {
    const std::string fault = coverage_fault(tensor);
    SHOAL_USER_CHECK(fault.empty(), "checkpoint", "tensor '{}': {}", tensor.name, fault);
    SHOAL_USER_CHECK(!tensors.contains(tensor.name), "checkpoint", "tensor '{}' stands twice",
                     tensor.name);
    tensors[tensor.name] = tensor_json(tensor);
  }
  json root{{"format", kFormat},         {"version", kVersion},
            {"step", manifest.step},     {"block_elements", kBlockElements},
            {"files", std::move(files)}, {"tensors", std::move(tensors)},
            {"metadata", metadata}};
  // `dump` without spaces, with keys in order, is one text for one content: the reader makes the
  // same one, without the checksum, whatever the white space of the file.
  root["checksum"] = hex(byte_checksum(root.dump()));
  return root.dump(1) + "\n";
}

Manifest parse_manifest(const std::string& text, const std::string& path) {
  const std::string where = fmt::format("'{}'", path);
  json root = parse_json(text, where);
  const json& format = field(root, "format", where);
  if (format != kFormat) throw broken(where, "is not the manifest of a Shoal checkpoint");
  if (const auto version = whole_number(field(root, "version", where), where + ": version");
      version != kVersion) {
    throw broken(where, fmt::format("has version {}, this program reads {}", version, kVersion))
        .hint("read it with the Shoal that wrote it, or a newer one");
  }
  // The checksum comes before the rest is used: a damaged number must be reported as damage.
  const std::uint64_t stated = checksum_value(field(root, "checksum", where), where + ": checksum");
  root.erase("checksum");
  if (byte_checksum(root.dump()) != stated)
    throw broken(where, "its checksum does not fit its content: damaged, or changed by hand");
  if (whole_number(field(root, "block_elements", where), where + ": block_elements") !=
      kBlockElements)
    throw broken(where, "block_elements is not 2^20");
  Manifest manifest{.step = whole_number(field(root, "step", where), where + ": step")};
  const json& files = field(root, "files", where);
  const json& tensors = field(root, "tensors", where);
  const json& metadata = field(root, "metadata", where);
  if (!files.is_array() || !tensors.is_object() || !metadata.is_object())
    throw broken(where, "files, tensors and metadata: a list and two objects are expected");
  for (const json& file : files) manifest.files.push_back(parse_file(file, path));
  for (const auto& [name, value] : tensors.items())
    manifest.tensors.push_back(parse_tensor(name, value, manifest.files.size(), path));
  manifest.metadata = metadata.dump();
  return manifest;
}

Manifest read_manifest(const std::string& checkpoint) {
  const std::string path = checkpoint + "/" + kManifestName;
  return parse_manifest(read_text(path, kLongestManifest), path);
}

}  // namespace shoal::checkpoint::format
