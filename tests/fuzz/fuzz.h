#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <string_view>

#include "shoal/base/error.h"

/// What the fuzz targets of this folder share. A target is one function, LLVMFuzzerTestOneInput,
/// that libFuzzer calls with inputs that it makes up (https://llvm.org/docs/LibFuzzer.html); it has
/// found something when the sanitizers stop it, when anything but an Error is thrown, or when
/// `must` says so.
namespace shoal::fuzz {

inline void must(bool holds, const char* what) {
  if (holds) return;
  std::fprintf(stderr, "==fuzz== broken: %s\n", what);
  std::abort();
}

/// Runs `parse`; false when it refused what it was given with an Error, which is its right. That an
/// invariant of ours broke is no refusal.
template <class Parse>
bool accepted(Parse&& parse) {
  try {
    parse();
    return true;
  } catch (const Error& error) {
    must(error.kind() != ErrorKind::kInternal, error.what());
    return false;
  }
}

inline std::string text_of(const std::uint8_t* data, std::size_t size) {
  return {reinterpret_cast<const char*>(data), size};
}

}  // namespace shoal::fuzz
