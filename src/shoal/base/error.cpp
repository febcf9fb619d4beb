#include "shoal/base/error.h"

#include <fmt/format.h>

#include <utility>

namespace shoal {

const char* name(ErrorKind kind) {
  switch (kind) {
    case ErrorKind::kInternal:
      return "internal";
    case ErrorKind::kUsage:
      return "usage";
    case ErrorKind::kConfig:
      return "config";
    case ErrorKind::kData:
      return "data";
    case ErrorKind::kInputMissing:
      return "input missing";
    case ErrorKind::kOutput:
      return "output";
    case ErrorKind::kNonFinite:
      return "non-finite";
    case ErrorKind::kResource:
      return "resource";
    case ErrorKind::kTimeout:
      return "timeout";
    case ErrorKind::kPeerLost:
      return "peer lost";
    case ErrorKind::kMismatch:
      return "mismatch";
    case ErrorKind::kAborted:
      return "aborted";
  }
  return "unknown";
}

// 65 to 78 are those of sysexits.h; 80, 81, 201 and 202 are Shoal's own (docs/reference/errors.md).
int exit_code(ErrorKind kind) {
  switch (kind) {
    case ErrorKind::kUsage:
      return 2;
    case ErrorKind::kData:
      return 65;
    case ErrorKind::kInputMissing:
      return 66;
    case ErrorKind::kOutput:
      return 74;
    case ErrorKind::kConfig:
      return 78;
    case ErrorKind::kNonFinite:
      return 80;
    case ErrorKind::kResource:
      return 81;
    case ErrorKind::kTimeout:
      return 201;
    case ErrorKind::kPeerLost:
      return 202;
    default:
      return 1;
  }
}

Error::Error(ErrorKind kind, std::string operation, std::string what)
    : std::runtime_error(what),
      kind_(kind),
      operation_(std::move(operation)),
      message_(std::move(what)) {
  compose();
}

Error& Error::at(int rank, int size) {
  rank_ = rank;
  size_ = size;
  return compose();
}
Error& Error::from(int peer) {
  peer_ = peer;
  return compose();
}
Error& Error::in(std::uint64_t sequence) {
  sequence_ = sequence;
  return compose();
}
Error& Error::awaiting(std::string awaited) {
  awaited_ = std::move(awaited);
  return compose();
}
Error& Error::hint(std::string hint) {
  hint_ = std::move(hint);
  return compose();
}

// Anew after every addition, so that what() is complete whenever the error is caught.
Error& Error::compose() {
  std::string where;
  const auto add = [&](std::string part) {
    where += (where.empty() ? "" : ", ") + std::move(part);
  };
  if (rank_ >= 0) add(fmt::format("rank {} of {}", rank_, size_));
  if (peer_ >= 0) add(fmt::format("peer {}", peer_));
  if (sequence_ > 0) add(fmt::format("operation #{}", sequence_));
  if (!awaited_.empty()) add(fmt::format("awaiting {}", awaited_));
  text_ = fmt::format("[{}] {}", operation_, message_);
  if (!where.empty()) text_ += fmt::format(" ({})", where);
  if (!hint_.empty()) text_ += fmt::format(". Hint: {}", hint_);
  return *this;
}

}  // namespace shoal
