#pragma once

#include "shoal/base/error.h"

namespace shoal {

/// Returns what `call` throws; an Error(internal) "no error" when it throws none.
template <class Call>
Error error_of(Call&& call) {
  try {
    call();
  } catch (const Error& error) {
    return error;
  }
  return Error(ErrorKind::kInternal, "none", "no error");
}

}  // namespace shoal
