#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "shoal/checkpoint/format/box.h"
#include "shoal/checkpoint/format/gguf/block_type.h"

/// The GGUF file format of ggml and llama.cpp, versions 2 and 3, little-endian
/// (https://github.com/ggml-org/ggml/blob/master/docs/gguf.md): the numbers of tensors and of
/// metadata, the metadata, a list of the tensors, and their data at multiples of an alignment.
namespace shoal::checkpoint::format::gguf {

/// A value of the metadata. Whole numbers of any width are one kind, and so are real ones, of which
/// one of 32 bits is the number that its shortest decimal form says (1e-5, not 9.99999974e-06).
using Value = std::variant<bool, std::int64_t, double, std::string, std::vector<std::int64_t>,
                           std::vector<double>, std::vector<std::string>>;

/// The metadata, with the name of its file for messages. The functions that take a key return
/// nothing where it is missing, and throw Error(data) where its value is of another kind.
class Metadata {
 public:
  explicit Metadata(std::string file = "") : file_(std::move(file)) {}

  const std::string& file() const { return file_; }
  const std::map<std::string, Value>& values() const { return values_; }
  /// False when the key is there already.
  bool add(std::string key, Value value);

  std::optional<bool> boolean(const std::string& key) const;
  std::optional<std::int64_t> integer(const std::string& key) const;
  std::optional<double> real(const std::string& key) const;  ///< also of a whole number
  std::optional<std::string> text(const std::string& key) const;
  const std::vector<std::string>* texts(const std::string& key) const;  ///< null: missing
  const std::vector<std::int64_t>* integers(const std::string& key) const;

 private:
  template <class T>
  const T* find(const std::string& key, const char* kind) const;

  std::string file_;
  std::map<std::string, Value> values_;
};

/// One tensor of a file.
struct Tensor {
  std::string name;
  BlockType type = BlockType::kF32;
  Shape shape;              ///< row-major; ggml counts dimensions from the other end
  std::int64_t offset = 0;  ///< of its first byte in the file

  std::int64_t bytes() const { return bytes_of(type, count_of(shape)); }
};

struct Header {
  Metadata metadata;
  std::vector<Tensor> tensors;

  const Tensor* find(const std::string& name) const;  ///< null when there is none
};

/// Copies `count` bytes at `offset` of a file to `data`; never asked for more than the file has.
using ReadBytes = std::function<void(void* data, std::int64_t offset, std::size_t count)>;

/// Reads and checks everything before the data of a file of `file_bytes` bytes: no more memory than
/// a few times its size is taken, no key or tensor stands twice, every tensor has a type that Shoal
/// reads and lies whole in the file, behind the one before. Throws Error(data) that names the file
/// and what is wrong with it.
Header parse_header(const ReadBytes& read, std::int64_t file_bytes, const std::string& path);

/// Opens the file at `path` and reads its header. Throws Error(input missing) too.
Header read_header(const std::string& path);

/// Returns the bytes before the data, up to its alignment, for tensors in the given order, and sets
/// their offsets. Whole numbers are written as u32, or as i64 where they do not fit; in lists as
/// i32 or i64. Real ones are written as f32. Throws Error(usage) for what parse_header would
/// refuse.
std::string render_header(const Metadata& metadata, std::vector<Tensor>& tensors);

/// Every tensor's data begins at a multiple of it.
inline constexpr std::int64_t kAlignment = 32;

}  // namespace shoal::checkpoint::format::gguf
