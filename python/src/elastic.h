#pragma once

#include <pybind11/pybind11.h>

namespace shoal::python {

/// Adds the classes that python/shoal/_elastic.py makes shoal.ElasticGroup of.
void add_elastic(pybind11::module_& module);

}  // namespace shoal::python
