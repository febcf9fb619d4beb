#pragma once

#include <cstddef>
#include <map>
#include <utility>
#include <vector>

#include "shoal/wire/assembler.h"

namespace shoal::wire {

/// Holds an entry for each stream for which something waits. Streams come and go with every
/// operation, so a few entries that were erased are kept with their memory for the next ones: a
/// steady flow of messages allocates none.
///
/// `Entry` has `reset()`, which makes it like a new one and keeps its memory. Not thread-safe.
template <class Entry>
class StreamMap {
  using Map = std::map<Stream, Entry>;

 public:
  using iterator = typename Map::iterator;

  iterator begin() { return map_.begin(); }
  iterator end() { return map_.end(); }
  iterator find(Stream stream) { return map_.find(stream); }
  bool contains(Stream stream) const { return map_.contains(stream); }
  bool empty() const { return map_.empty(); }

  /// Returns the entry of the stream, and whether it is a new one.
  std::pair<iterator, bool> try_emplace(Stream stream) {
    if (spare_.empty()) return map_.try_emplace(stream);
    const auto place = map_.lower_bound(stream);
    if (place != map_.end() && place->first == stream) return {place, false};
    auto entry = std::move(spare_.back());
    spare_.pop_back();
    entry.key() = stream;
    return {map_.insert(place, std::move(entry)), true};
  }

  void erase(iterator entry) {
    if (spare_.size() == kSpare) {
      map_.erase(entry);
      return;
    }
    entry->second.reset();
    spare_.push_back(map_.extract(entry));
  }

  template <class Unwanted>
  void erase_if(Unwanted&& unwanted) {
    std::erase_if(map_, unwanted);
  }
  void clear() { map_.clear(); }

 private:
  /// Two operations in a row have as many: each rank announces one, and sends its part. There are
  /// two of these maps for each of the other ranks, so each entry kept is one of thousands.
  static constexpr std::size_t kSpare = 4;
  Map map_;
  std::vector<typename Map::node_type> spare_;
};

}  // namespace shoal::wire
