#pragma once

#include <fmt/format.h>

#include "shoal/base/error.h"

/// The caller's mistake: throws Error(usage) that starts with `[operation]`. The condition is
/// evaluated once; operands go into the message.
#define SHOAL_USER_CHECK(condition, operation, ...)                                            \
  do {                                                                                         \
    if (!(condition)) [[unlikely]]                                                             \
      throw ::shoal::Error(::shoal::ErrorKind::kUsage, operation, ::fmt::format(__VA_ARGS__)); \
  } while (0)

/// Our mistake: throws Error(internal) with the place and the condition.
#define SHOAL_CHECK(condition, ...)                                                         \
  do {                                                                                      \
    if (!(condition)) [[unlikely]]                                                          \
      throw ::shoal::Error(::shoal::ErrorKind::kInternal, "internal",                       \
                           ::fmt::format("{}:{}: {} does not hold: {}", __FILE__, __LINE__, \
                                         #condition, ::fmt::format(__VA_ARGS__)));          \
  } while (0)
