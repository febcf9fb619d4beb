#include "shoal/collective/elastic/world_endings.h"

#include <exception>
#include <utility>

namespace shoal::collective::elastic {

WorldEndings::~WorldEndings() {
  for (Ending& ending : endings_) ending.thread.join();
}

void WorldEndings::end(std::shared_ptr<void> world) {
  for (auto it = endings_.begin(); it != endings_.end();) {
    if (*it->done) {
      it->thread.join();
      it = endings_.erase(it);
    } else {
      ++it;
    }
  }
  auto done = std::make_shared<std::atomic<bool>>(false);
  try {
    endings_.push_back({done, {}});
    // The thread alone holds the world: with a second holder, whoever lets go last ends it.
    endings_.back().thread = std::thread([world = std::move(world), done]() mutable {
      world.reset();
      *done = true;
    });
  } catch (const std::exception&) {
    // There is no thread to be had, and the world has ended with what was meant for it: here.
    if (!endings_.empty() && endings_.back().done == done) endings_.pop_back();
    world.reset();
  }
}

}  // namespace shoal::collective::elastic
