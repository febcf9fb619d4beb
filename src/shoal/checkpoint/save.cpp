#include "shoal/checkpoint/agreement.h"
#include "shoal/checkpoint/checkpoint.h"
#include "shoal/checkpoint/format/store.h"
#include "shoal/checkpoint/writing.h"

namespace shoal::checkpoint {
namespace {

std::vector<format::Source> sources_of(std::vector<OwnBox> boxes) {
  std::vector<format::Source> sources;
  for (OwnBox& own : boxes) {
    // The closure keeps the memory until it dies with the sources.
    own.source.block = format::blocks_of(
        own.source.type, [local = own.local, data = own.data]() -> const void* { return data; });
    sources.push_back(std::move(own.source));
  }
  return sources;
}

}  // namespace

std::string save(const std::string& directory, std::int64_t step,
                 const std::vector<StateItem>& items, const std::string& metadata,
                 const comm::Group& group, const SaveOptions& options) {
  check_save(step, options);
  const bool first = group.rank() == 0;
  try {
    // Rank 0 makes the folder before any rank writes into it.
    const std::string folder = agree(group, options.timeout, [&] {
      return first ? format::begin_step(directory, step) : "";
    })[0];
    const auto parts = agree(group, options.timeout, [&] {
      std::vector<OwnBox> own = own_boxes(items);
      const std::vector<std::string> left = left_to_others(items, own);
      return write_own(folder, group.rank(), sources_of(std::move(own)), left, options);
    });
    // The manifest and the final name come after every rank's files are complete, and on the disk
    // if `fsync` is set. A crash before that leaves a folder that no reader looks at.
    return agree(group, options.timeout, [&] {
      return first ? complete(directory, folder, step, metadata, parts, options) : "";
    })[0];
  } catch (...) {
    if (first) format::abandon_step(directory, step);
    throw;
  }
}

}  // namespace shoal::checkpoint
