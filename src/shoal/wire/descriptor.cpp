#include "shoal/wire/descriptor.h"

#include <unistd.h>

#include <utility>

namespace shoal::wire {

Descriptor& Descriptor::operator=(Descriptor&& other) noexcept {
  // `other` closes what this one held when it is destroyed.
  std::swap(fd_, other.fd_);
  return *this;
}
Descriptor::~Descriptor() {
  if (fd_ >= 0) close(fd_);
}
int Descriptor::release() { return std::exchange(fd_, -1); }

}  // namespace shoal::wire
