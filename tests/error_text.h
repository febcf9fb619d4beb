#pragma once

#include <string>

#include "shoal/base/error.h"

namespace shoal {

/// What the shoal::Error that `call` throws says; empty when it throws none.
template <class Call>
std::string error_text(Call call) {
  try {
    call();
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

}  // namespace shoal
