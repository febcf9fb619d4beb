#include "python/src/elastic.h"

#include <pybind11/functional.h>
#include <pybind11/stl.h>
#include <torch/csrc/utils/pybind.h>
#include <unistd.h>

#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "python/src/elastic_state.h"
#include "shoal/base/check.h"
#include "shoal/base/duration.h"
#include "shoal/base/hex.h"
#include "shoal/collective/elastic/elastic_group.h"
#include "shoal/comm/group.h"
#include "shoal/wire/join_token.h"
#include "shoal/wire/tls_mode.h"

namespace shoal::python {
namespace {

namespace py = pybind11;
using collective::Communicator;
using collective::Kind;
using collective::Operation;
using collective::elastic::Attempt;
using collective::elastic::ElasticGroup;
using collective::elastic::Roster;
using collective::elastic::StepResult;

std::string join_token(const std::string& secret, double good_for_s, const std::string& cluster) {
  using Clock = std::chrono::system_clock;
  const std::chrono::duration<double> length(good_for_s);
  const auto expires = Clock::now() + std::chrono::duration_cast<Clock::duration>(length);
  return wire::issue_join_token(secret, cluster, expires);
}

std::vector<std::string> ids_of(const collective::membership::View& view) {
  std::vector<std::string> ids;
  for (const auto& member : view.members) ids.push_back(member.id.text());
  return ids;
}

/// The members of one attempt and their collectives, which can be called until the attempt ends.
class ElasticView {
 public:
  ElasticView(std::shared_ptr<Communicator> group, const Roster& roster)
      : group_(std::move(group)),
        members(ids_of(roster.view)),
        epoch(roster.view.epoch),
        rank(roster.rank),
        size(roster.size),
        step(roster.step),
        samples(roster.samples),
        attempt(roster.attempt) {}

  void all_reduce(const at::Tensor& tensor) {
    run({.kind = Kind::kAllReduce}, tensor, tensor, tensor.numel());
  }
  void broadcast(const at::Tensor& tensor, int root) {
    SHOAL_USER_CHECK(root >= 0 && root < size, "broadcast", "root {} of {} members", root, size);
    run({.kind = Kind::kBroadcast, .peer = root}, tensor, tensor, tensor.numel());
  }
  void all_gather(const at::Tensor& output, const at::Tensor& input) {
    SHOAL_USER_CHECK(
        output.scalar_type() == input.scalar_type() && output.numel() == size * input.numel(),
        "all_gather", "{} elements of {} from {} members do not fill {} of {}", input.numel(),
        c10::toString(input.scalar_type()), size, output.numel(),
        c10::toString(output.scalar_type()));
    run({.kind = Kind::kAllGather}, input, output, input.numel());
  }
  void end() { group_.reset(); }
  /// Returns the error of the first collective that failed; nothing where none has.
  const std::optional<Error>& failure() const { return failure_; }

 private:
  void run(Operation operation, const at::Tensor& input, const at::Tensor& output,
           std::int64_t count) {
    SHOAL_USER_CHECK(group_, name(operation.kind), "this view's attempt has ended");
    for (const at::Tensor& tensor : {input, output}) {
      SHOAL_USER_CHECK(tensor.device().is_cpu() && tensor.is_contiguous(), name(operation.kind),
                       "takes contiguous tensors in host memory");
    }
    operation.type = comm::element_type(input.scalar_type());
    operation.buffer = {.input = input.const_data_ptr(),
                        .output = output.mutable_data_ptr(),
                        .count = static_cast<std::size_t>(count)};
    const py::gil_scoped_release others_run;
    try {
      group_->wait(group_->start(operation));
    } catch (const Error& error) {
      if (!failure_ && error.kind() != ErrorKind::kUsage) failure_ = error;
      throw;
    }
  }

  std::shared_ptr<Communicator> group_;
  std::optional<Error> failure_;

 public:
  const std::vector<std::string> members;
  const std::uint64_t epoch;
  const int rank;
  const int size;
  const std::uint64_t step;
  const std::uint64_t samples;
  const int attempt;
};

/// ElasticGroup for tensors and functions of Python. A call may come from any thread that holds
/// Python's lock, one at a time; the lock is free while it waits.
class ElasticMember {
 public:
  ElasticMember(ElasticState::Named tensors, ElasticGroup::Options options,
                const std::vector<std::string>& join, py::object on_fault)
      : state_(std::move(tensors)), on_fault_(std::move(on_fault)) {
    options.state.write = [this] { return state_.bytes(); };
    options.state.read = [this](std::span<const std::byte> bytes) { state_.read(bytes); };
    options.on_fault = [this](const Error& error) { tell(error); };
    options.may_go_on = [] {
      // Python handles signals in its main thread. Others may outlive the interpreter.
      if (gettid() != getpid()) return;
      const py::gil_scoped_acquire lock;
      if (PyErr_CheckSignals() != 0) throw py::error_already_set();
    };
    std::vector<wire::Endpoint> contacts;
    for (const std::string& contact : join) contacts.push_back(wire::parse_endpoint(contact));
    const py::gil_scoped_release others_run;
    group_ =
        contacts.empty() ? ElasticGroup::found(options) : ElasticGroup::join(options, contacts);
  }
  ~ElasticMember() {
    // Its threads may be about to tell Python of a fault.
    const py::gil_scoped_release others_run;
    group_.reset();
  }
  ElasticMember(const ElasticMember&) = delete;
  ElasticMember& operator=(const ElasticMember&) = delete;

  ElasticGroup& group() const { return *group_; }

  void wait_for_members(std::size_t members, double timeout_s) {
    const py::gil_scoped_release others_run;
    group_->wait_for_members(members, Deadline::in(from_seconds(timeout_s)));
  }

  StepResult step(const py::function& attempt) {
    const py::gil_scoped_release others_run;
    return group_->step(
        group_->next_step(),
        [&](const std::shared_ptr<Communicator>& group, const Roster& roster) {
          return make(attempt, group, roster);
        },
        [&] {
          state_.copy_from(*next_);
          next_.reset();
        });
  }

  bool leave(double timeout_s) {
    const py::gil_scoped_release others_run;
    return group_->leave(Deadline::in(from_seconds(timeout_s)));
  }

 private:
  void tell(const Error& error) {
    const py::gil_scoped_acquire lock;
    if (on_fault_.is_none()) return;
    try {
      on_fault_(std::string(error.what()));
    } catch (py::error_already_set& raised) {
      // A listener that fails must not end what the group lives through.
      raised.discard_as_unraisable("on_fault of shoal.ElasticGroup");
    }
  }

  // A collective that has failed ends the attempt, whatever Python made of its exception.
  Attempt make(const py::function& attempt, const std::shared_ptr<Communicator>& group,
               const Roster& roster) {
    const py::gil_scoped_acquire lock;
    const auto view = std::make_shared<ElasticView>(group, roster);
    struct End {
      ElasticView& view;
      ~End() { view.end(); }
    } const end{*view};
    try {
      const py::object made = attempt(view);
      if (view->failure()) throw Error(*view->failure());
      if (!py::isinstance<py::tuple>(made) || py::len(made) != 2) {
        throw Error(ErrorKind::kUsage, "step", "the attempt must return (next state, samples)");
      }
      auto [tensors, samples] = made.cast<std::pair<ElasticState::Named, std::uint64_t>>();
      next_.emplace(std::move(tensors));
      state_.check_same_shape(*next_);
      const py::gil_scoped_release others_run;
      return {.state = next_->digest(), .samples = samples};
    } catch (const py::error_already_set&) {
      if (view->failure()) throw Error(*view->failure());
      throw;
    } catch (const py::cast_error&) {
      throw Error(ErrorKind::kUsage, "step",
                  "the attempt must return ({name: tensor}, number of samples)");
    }
  }

  ElasticState state_;
  std::optional<ElasticState> next_;
  py::object on_fault_;
  std::unique_ptr<ElasticGroup> group_;
};

}  // namespace

void add_elastic(py::module_& module) {
  py::class_<ElasticView, std::shared_ptr<ElasticView>>(module, "ElasticView")
      .def_readonly("members", &ElasticView::members)
      .def_readonly("epoch", &ElasticView::epoch)
      .def_readonly("rank", &ElasticView::rank)
      .def_readonly("size", &ElasticView::size)
      .def_readonly("step", &ElasticView::step)
      .def_readonly("samples", &ElasticView::samples)
      .def_readonly("attempt", &ElasticView::attempt)
      .def("all_reduce", &ElasticView::all_reduce, py::arg("tensor"))
      .def("broadcast", &ElasticView::broadcast, py::arg("tensor"), py::arg("root"))
      .def("all_gather", &ElasticView::all_gather, py::arg("output"), py::arg("input"));
  py::class_<StepResult>(module, "ElasticStep")
      .def_property_readonly("members", [](const StepResult& step) { return ids_of(step.view); })
      .def_property_readonly("epoch", [](const StepResult& step) { return step.view.epoch; })
      .def_readonly("rank", &StepResult::rank)
      .def_readonly("step", &StepResult::step)
      .def_readonly("first_sample", &StepResult::first_sample)
      .def_readonly("samples", &StepResult::samples)
      .def_property_readonly("state", [](const StepResult& step) { return hex(step.state); })
      .def_readonly("attempts", &StepResult::attempts);
  py::class_<ElasticMember>(module, "ElasticMember")
      .def(py::init([](ElasticState::Named state, const std::string& key,
                       const std::vector<std::string>& join, const std::string& listen,
                       const std::string& ports, const std::vector<std::string>& advertise,
                       const std::string& tls, const std::string& cluster,
                       const std::string& admission_secret, const std::string& token,
                       double suspect_after_s, double meeting_timeout_s, double step_timeout_s,
                       py::object on_fault) {
             ElasticGroup::Options options;
             options.network.key = key;
             options.network.cluster = cluster;
             options.network.host = listen;
             if (!ports.empty()) options.network.ports = wire::parse_port_range(ports);
             for (const std::string& address : advertise)
               options.network.advertised.push_back(wire::parse_endpoint(address));
             const auto mode = wire::parse_tls_mode(tls);
             SHOAL_USER_CHECK(mode, "ElasticGroup", "tls is auto, on or off, not '{}'", tls);
             options.network.tls = *mode;
             if (!admission_secret.empty())
               options.network.admission = wire::token_key(admission_secret);
             options.network.token = token;
             options.network.membership.suspect_after = from_seconds(suspect_after_s);
             options.meeting_timeout = from_seconds(meeting_timeout_s);
             options.step_timeout = from_seconds(step_timeout_s);
             return std::make_unique<ElasticMember>(std::move(state), std::move(options), join,
                                                    std::move(on_fault));
           }),
           py::arg("state"), py::kw_only(), py::arg("key"), py::arg("join"), py::arg("listen"),
           py::arg("ports"), py::arg("advertise"), py::arg("tls"), py::arg("cluster"),
           py::arg("admission_secret"), py::arg("token"), py::arg("suspect_after_s"),
           py::arg("meeting_timeout_s"), py::arg("step_timeout_s"), py::arg("on_fault"))
      .def_property_readonly(
          "id", [](const ElasticMember& member) { return member.group().self().text(); })
      .def_property_readonly(
          "endpoint", [](const ElasticMember& member) { return member.group().endpoint().text(); })
      .def_property_readonly(
          "members", [](const ElasticMember& member) { return ids_of(member.group().view()); })
      .def_property_readonly("next_step",
                             [](const ElasticMember& member) { return member.group().next_step(); })
      .def_property_readonly("samples",
                             [](const ElasticMember& member) { return member.group().samples(); })
      .def("wait_for_members", &ElasticMember::wait_for_members, py::arg("members"),
           py::arg("timeout_s") = 1800.0)
      .def("step", &ElasticMember::step, py::arg("attempt"))
      .def("leave", &ElasticMember::leave, py::arg("timeout_s") = 30.0);
  module.def("join_token", &join_token, py::arg("secret"), py::arg("good_for_s"),
             py::arg("cluster") = "shoal");
}

}  // namespace shoal::python
