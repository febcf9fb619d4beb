#pragma once

#include <cstdint>
#include <stdexcept>
#include <string>

namespace shoal {

/// The kind of an error; it decides the exit code of the program.
enum class ErrorKind : std::uint8_t {
  kInternal,      ///< a broken invariant of Shoal itself
  kUsage,         ///< a call or command line that makes no sense
  kConfig,        ///< a job file that is wrong
  kData,          ///< input that exists but is broken
  kInputMissing,  ///< input that does not exist
  kOutput,        ///< writing failed: disk full, no permission
  kNonFinite,     ///< the loss or a gradient is not a number
  kResource,      ///< out of memory or of another bounded resource
  kTimeout,       ///< a deadline passed
  kPeerLost,      ///< another rank died or became unreachable
  kMismatch,      ///< ranks disagree on the collective they are in
  kAborted,       ///< stopped because another rank or the caller said so
};

const char* name(ErrorKind kind);

/// The exit code of a program that ends with such an error: those of sysexits.h where one fits (2,
/// 65, 66, 74, 78), 80 non-finite loss, 81 out of memory, 201 timed out, 202 peer lost, 1
/// otherwise.
int exit_code(ErrorKind kind);

/// The one error type of Shoal. Reads `[operation] what happened: values (rank r of n, peer p,
/// ...). Hint: what to do.`
///
/// Build it in steps: `throw Error(ErrorKind::kTimeout, "all_reduce", "no answer in 30 s").at(rank,
/// size).from(peer).hint("...")`.
class Error : public std::runtime_error {
 public:
  Error(ErrorKind kind, std::string operation, std::string what);

  Error& at(int rank, int size);
  Error& from(int peer);
  Error& in(std::uint64_t sequence);
  Error& awaiting(std::string awaited);
  Error& hint(std::string hint);

  ErrorKind kind() const { return kind_; }
  int rank() const { return rank_; }  ///< -1: unknown
  int size() const { return size_; }
  int peer() const { return peer_; }  ///< -1: none
  std::uint64_t sequence() const { return sequence_; }
  const std::string& operation() const { return operation_; }
  /// The description alone, without operation, ranks and hint.
  const std::string& message() const { return message_; }
  const std::string& awaited() const { return awaited_; }
  const std::string& hint() const { return hint_; }

  const char* what() const noexcept override { return text_.c_str(); }

 private:
  Error& compose();

  ErrorKind kind_;
  int rank_ = -1;
  int size_ = -1;
  int peer_ = -1;
  std::uint64_t sequence_ = 0;
  std::string operation_;
  std::string message_;
  std::string awaited_;
  std::string hint_;
  std::string text_;  ///< composed of all of them
};

}  // namespace shoal
