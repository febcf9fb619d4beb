// The extension module shoal._c10d: what python/shoal/__init__.py hands to torch.distributed.
#include <pybind11/chrono.h>
#include <pybind11/stl.h>
#include <torch/csrc/utils/pybind.h>

#include <cstdlib>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include "python/src/backend.h"
#include "python/src/elastic.h"
#include "shoal/base/check.h"
#include "shoal/base/instruction_sets.h"
#include "shoal/comm/allocator.h"

namespace shoal::python {
namespace {

namespace py = pybind11;
using BackendPointer = c10::intrusive_ptr<c10d::Backend>;

BackendPointer create(const c10::intrusive_ptr<c10d::Store>& store, int rank, int size,
                      std::chrono::milliseconds timeout, const std::vector<int>& global_ranks,
                      const std::optional<BackendPointer>& first, const ShoalOptions& options) {
  std::vector<int> members = global_ranks;
  std::shared_ptr<Channel> met;
  // With a first group of this backend the ranks are connected already; otherwise they have their
  // rendezvous now.
  const auto* world = first ? dynamic_cast<const ShoalBackend*>(first->get()) : nullptr;
  if (world) {
    met = world->channel();
    SHOAL_USER_CHECK(static_cast<int>(members.size()) == size, "new_group",
                     "{} global ranks for a group of {}", members.size(), size);
  } else {
    members.resize(static_cast<std::size_t>(size));
    for (int r = 0; r < size; ++r) members[r] = r;
  }
  return c10::make_intrusive<ShoalBackend>(store, rank, size, timeout, std::move(members),
                                           std::move(met), options);
}

const ShoalBackend& shoal_backend(const BackendPointer& backend) {
  const auto* own = dynamic_cast<const ShoalBackend*>(backend.get());
  SHOAL_USER_CHECK(own, "report", "the group's backend is {}", backend->getBackendName());
  return *own;
}

const char* name(c10d::ErrorType error) {
  switch (error) {
    case c10d::ErrorType::SUCCESS:
      return "success";
    case c10d::ErrorType::TIMEOUT:
      return "timeout";
    case c10d::ErrorType::COMM_ERROR:
      return "communication";
    case c10d::ErrorType::REMOTE_ERROR:
      return "remote";
  }
  return "unknown";
}

void install(int ranks_on_host) {
  if (!comm::installed_arena()) {
    comm::install_arena(
        std::make_shared<wire::Arena>(wire::Arena::Options{.ranks_on_host = ranks_on_host}));
  }
}

std::string memory() {
  const auto arena = comm::installed_arena();
  return arena ? arena->ledger().text() : "no arena is installed";
}

bool in_arena(const at::Tensor& tensor) {
  const auto arena = comm::installed_arena();
  return arena && arena->contains(tensor.const_data_ptr(), tensor.nbytes());
}

}  // namespace

PYBIND11_MODULE(_c10d, m) {
  // PyTorch asks for its own limit at its first operation: set before it, the variable limits both.
  if (const char* limit = std::getenv("SHOAL_CPU")) limit_instruction_sets(limit);
  py::class_<ShoalOptions, c10d::Backend::Options, c10::intrusive_ptr<ShoalOptions>>(m, "Options")
      .def(py::init([](const std::string& flight_directory, const std::string& transport,
                       const std::string& interface, const std::string& ports,
                       const std::string& advertise, const std::string& rails,
                       const std::string& silence_s, const std::string& tls,
                       const std::string& routes, const std::string& job_key,
                       const std::string& host, bool in_rank_order) {
             return c10::make_intrusive<ShoalOptions>(
                 flight_directory,
                 NetworkOptions{transport, interface, ports, advertise, rails, silence_s, tls,
                                routes, job_key, host, in_rank_order});
           }),
           py::kw_only(), py::arg("flight_directory") = "", py::arg("transport") = "",
           py::arg("interface") = "", py::arg("ports") = "", py::arg("advertise") = "",
           py::arg("rails") = "", py::arg("silence_s") = "", py::arg("tls") = "",
           py::arg("routes") = "", py::arg("job_key") = "", py::arg("host") = "",
           py::arg("in_rank_order") = false)
      .def_readonly("flight_directory", &ShoalOptions::flight_directory)
      .def_property_readonly("transport", [](const ShoalOptions& o) { return o.network.transport; })
      .def_property_readonly("interface", [](const ShoalOptions& o) { return o.network.interface; })
      .def_property_readonly("ports", [](const ShoalOptions& o) { return o.network.ports; })
      .def_property_readonly("advertise", [](const ShoalOptions& o) { return o.network.advertise; })
      .def_property_readonly("rails", [](const ShoalOptions& o) { return o.network.rails; })
      .def_property_readonly("silence_s", [](const ShoalOptions& o) { return o.network.silence_s; })
      .def_property_readonly("tls", [](const ShoalOptions& o) { return o.network.tls; })
      .def_property_readonly("routes", [](const ShoalOptions& o) { return o.network.routes; })
      .def_property_readonly("job_key", [](const ShoalOptions& o) { return o.network.job_key; })
      .def_property_readonly("host", [](const ShoalOptions& o) { return o.network.host; })
      .def_property_readonly("in_rank_order",
                             [](const ShoalOptions& o) { return o.network.in_rank_order; });
  // It blocks until all ranks have come, so other Python threads must run meanwhile.
  m.def("create", &create, py::arg("store"), py::arg("rank"), py::arg("size"), py::arg("timeout"),
        py::arg("global_ranks"), py::arg("first"), py::arg("options"),
        py::call_guard<py::gil_scoped_release>());
  m.def("install_arena", &install, py::arg("ranks_on_host") = 1);
  m.def("memory", &memory);
  m.def("in_arena", &in_arena, py::arg("tensor"));
  // What PyTorch 2.11 asks of a backend in C++ and does not show in Python.
  m.def("options", [](const BackendPointer& backend) { return backend->getBackendOptions(); });
  m.def("error", [](const BackendPointer& backend) { return name(backend->getError()); });
  m.def("allocates_in_arena", [](const BackendPointer& backend) {
    constexpr std::size_t kBytes = 4096;
    const auto memory = backend->getMemAllocator()->allocate(kBytes);
    return comm::installed_arena() && comm::installed_arena()->contains(memory.get(), kBytes);
  });
  m.def(
      "report", [](const BackendPointer& backend) { return shoal_backend(backend).report(); },
      py::call_guard<py::gil_scoped_release>());
  add_elastic(m);
  // The words of a program that ends by an exception of its own: its peers read them in place of
  // "has left the group".
  m.def(
      "fail",
      [](const BackendPointer& backend, const std::string& why) {
        shoal_backend(backend).channel()->abort("program", why.c_str());
      },
      py::call_guard<py::gil_scoped_release>());
}

}  // namespace shoal::python
