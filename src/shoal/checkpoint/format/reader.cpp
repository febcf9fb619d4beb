#include "shoal/checkpoint/format/reader.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "shoal/base/check.h"
#include "shoal/checkpoint/format/strict_json.h"
#include "shoal/checkpoint/format/value_checksum.h"

namespace shoal::checkpoint::format {
namespace {

constexpr const char* kDamaged =
    "the file was damaged after it was written: remove this checkpoint, so that the run goes on "
    "from the one before it (shoal ckpt ls), and check "
    "the disk";

Box shifted(const Box& box, const Shape& origin) {
  Box moved = box;
  for (std::size_t d = 0; d < origin.size(); ++d) {
    moved.begin[d] -= origin[d];
    moved.end[d] -= origin[d];
  }
  return moved;
}

std::int64_t block_end(std::int64_t block, std::int64_t count) {
  return std::min((block + 1) * kBlockElements, count);
}

}  // namespace

Reader::Reader(std::string path)
    : path_(std::move(path)), manifest_(read_manifest(path_)), files_(manifest_.files.size()) {}

const Reader::DataFileInUse& Reader::file(int index) {
  auto& slot = files_[index];
  if (slot) return *slot;
  const DataFile& expected = manifest_.files[index];
  const std::string path = path_ + "/" + expected.name;
  const std::string where = fmt::format("'{}'", path);
  try {
    File file = File::open(path);
    // Size and header are compared before any value is read, so a truncated or exchanged file shows
    // at once.
    if (file.bytes() != expected.bytes) {
      throw broken(where,
                   fmt::format("has {} bytes, the manifest says {}", file.bytes(), expected.bytes))
          .hint(kDamaged);
    }
    Header header = read_header(file);
    if (header.checksum != expected.header_checksum)
      throw broken(where, "its header is not the one that was written").hint(kDamaged);
    slot = std::make_unique<DataFileInUse>(DataFileInUse{std::move(file), std::move(header)});
  } catch (const Error& error) {
    // The manifest names it: that it is missing is damage, not a wrong path.
    if (error.kind() != ErrorKind::kInputMissing) throw;
    throw broken(where, "belongs to the checkpoint and is missing").hint(kDamaged);
  }
  return *slot;
}

Reader::Place Reader::place(const LogicalTensor& tensor, const Piece& piece) {
  const DataFileInUse& in = file(piece.file);
  const Entry* entry = in.header.find(piece.name);
  if (!entry || entry->type != tensor.type || entry->shape != piece.box.shape()) {
    throw broken(fmt::format("'{}'", in.file.path()),
                 fmt::format("holds no '{}' of {} {}", piece.name, name(tensor.type),
                             text(piece.box.shape())));
  }
  return {&in.file, entry->offset};
}

void Reader::read_block(const LogicalTensor& tensor, const Piece& piece, const Place& place,
                        std::int64_t block, void* data) {
  const std::int64_t begin = block * kBlockElements;
  const std::int64_t end = block_end(block, piece.box.count());
  const std::int64_t element = static_cast<std::int64_t>(size_of(tensor.type));
  place.file->read(data, place.offset + begin * element, (end - begin) * element);
  bytes_read_ += (end - begin) * element;
  // Elements count by their index in the whole tensor, so a block in the wrong place has a wrong
  // checksum too.
  const std::uint64_t found =
      value_checksum(data, tensor.type, piece.box, tensor.shape, begin, end);
  if (found != piece.blocks[block]) {
    throw broken(fmt::format("'{}': tensor '{}'", place.file->path(), piece.name),
                 fmt::format("elements {} to {} have checksum {}, the manifest says {}", begin, end,
                             hex(found), hex(piece.blocks[block])))
        .hint(kDamaged);
  }
}

void Reader::copy_shared(const LogicalTensor& tensor, const Piece& piece, const Box& box,
                         char* data) {
  const Box shared = intersect(piece.box, box);
  const std::int64_t count = shared.count();
  const std::int64_t held = piece.box.count();
  const std::int64_t element = static_cast<std::int64_t>(size_of(tensor.type));
  if (count == 0) return;
  const Place from = place(tensor, piece);
  std::int64_t buffered = -1;
  const auto copy = [&](std::int64_t in_piece, std::int64_t in_box, std::int64_t length) {
    while (length > 0) {
      const std::int64_t block = in_piece / kBlockElements;
      const std::int64_t begin = block * kBlockElements;
      const std::int64_t part = std::min(length, block_end(block, held) - in_piece);
      // A whole block goes straight to its place. A part of one needs the rest for the checksum: it
      // is read through the buffer, which is kept because the next run often lies in the same
      // block.
      if (in_piece == begin && part == block_end(block, held) - begin) {
        read_block(tensor, piece, from, block, data + in_box * element);
      } else {
        if (buffered != block) {
          buffer_.resize(kBlockElements * element);
          read_block(tensor, piece, from, block, buffer_.data());
          buffered = block;
        }
        std::memcpy(data + in_box * element, buffer_.data() + (in_piece - begin) * element,
                    part * element);
      }
      in_piece += part;
      in_box += part;
      length -= part;
    }
  };
  const Box in_piece = shifted(shared, piece.box.begin);
  const Box in_box = shifted(shared, box.begin);
  const Shape piece_shape = piece.box.shape();
  const Shape box_shape = box.shape();
  // The shared box lies in two arrays. The outer runs are contiguous in the piece; within each, the
  // inner ones are contiguous in the result too.
  for_each_run(in_piece, piece_shape, 0, count, [&](const Run& outer) {
    for_each_run(in_box, box_shape, outer.local, outer.local + outer.count, [&](const Run& inner) {
      copy(outer.global + inner.local - outer.local, inner.global, inner.count);
    });
  });
}

void Reader::read(const LogicalTensor& tensor, const Box& box, void* data) {
  SHOAL_USER_CHECK(fits(box, tensor.shape), "checkpoint",
                   "box {} to {} does not lie in tensor '{}' of {}", text(box.begin), text(box.end),
                   tensor.name, text(tensor.shape));
  for (const Piece& piece : tensor.pieces)
    copy_shared(tensor, piece, box, static_cast<char*>(data));
}

std::vector<char> Reader::read(const LogicalTensor& tensor) {
  std::vector<char> data(tensor.bytes());
  read(tensor, whole(tensor.shape), data.data());
  return data;
}

void Reader::verify(const std::function<void(std::int64_t)>& progress) {
  std::int64_t bytes = 0;
  // Also files in which no tensor lies.
  for (std::size_t index = 0; index < files_.size(); ++index) file(static_cast<int>(index));
  for (const LogicalTensor& tensor : manifest_.tensors) {
    for (const Piece& piece : tensor.pieces) {
      const Place from = place(tensor, piece);
      buffer_.resize(kBlockElements * size_of(tensor.type));
      for (std::size_t block = 0; block < piece.blocks.size(); ++block)
        read_block(tensor, piece, from, static_cast<std::int64_t>(block), buffer_.data());
      bytes += piece.box.count() * static_cast<std::int64_t>(size_of(tensor.type));
      if (progress) progress(bytes);
    }
  }
}

}  // namespace shoal::checkpoint::format
