#include "python/src/signals.h"

#include <pybind11/pybind11.h>
#include <unistd.h>

namespace shoal::python {

bool runs_signal_handlers() { return ::gettid() == ::getpid(); }

void run_signal_handlers() {
  const pybind11::gil_scoped_acquire python;
  if (PyErr_CheckSignals() != 0) throw pybind11::error_already_set();
}

bool at_a_prompt() {
  const pybind11::gil_scoped_acquire python;
  return PySys_GetObject("ps1") != nullptr;
}

void print_error(const std::string& line) {
  const pybind11::gil_scoped_acquire python;
  PySys_FormatStderr("%s\n", line.c_str());
}

}  // namespace shoal::python
