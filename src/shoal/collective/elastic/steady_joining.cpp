// How a joiner gets a steady state before it comes into a view, and how members give it one.
#include <fmt/format.h>

#include <utility>

#include "shoal/collective/elastic/elastic_group.h"
#include "shoal/collective/elastic/state_fetch.h"

namespace shoal::collective::elastic {

// It is ready when it has the state. Where nobody gives it one, it comes in without.
void ElasticGroup::fetch(Deadline deadline) {
  if (const auto fetched = fetch_state(*carrier_, options_.state,
                                       {.world = options_.world,
                                        .meeting_timeout = options_.meeting_timeout,
                                        .on_fault = options_.on_fault,
                                        .may_go_on = [this] { check_going_on(); }},
                                       deadline)) {
    options_.state.read(fetched->state.bytes);
    fetched_ = Fetched{.place = fetched->state.place, .provider = fetched->provider};
  }
  carrier_->post(membership::JoinerReady{});
}

// A state that was fetched may be of the past. If it is another one of the same step, its provider
// has told a digest that the group does not have.
bool ElasticGroup::has_fetched(const View& view) {
  if (!fetched_) return false;
  const Fetched fetched = *fetched_;
  const membership::Place& place = fetched.place;
  if (place.state == view.state) return true;
  fetched_.reset();
  if (place.lineage == view.lineage && place.step == view.first_step) {
    options_.on_fault(
        Error(ErrorKind::kData, "state",
              fmt::format("member {} has given joiner {} a state for step {} with digest {}, and "
                          "the view of epoch {} begins with {}",
                          fetched.provider.text(), self().text(), place.step,
                          short_text(place.state), view.epoch, short_text(view.state)))
            .hint(
                "The state is asked for again in the view. That member should be started again."));
  }
  return false;
}

void ElasticGroup::serve_joiners() {
  LetterCarrier* const carrier = carrier_.get();
  if (!options_.state.steady) {
    return carrier->when_state_message([carrier](const MemberId& from, const StateMessage& asked) {
      if (!StateMessage::asks(asked.kind)) return;
      carrier->send(from, {.kind = StateMessage::Kind::kNone,
                           .stream = asked.stream,
                           .text = "the state of this member may change at any time"});
    });
  }
  steady_ =
      std::make_shared<SteadyState>(options_.state, membership::Place{.lineage = view_.lineage,
                                                                      .epoch = view_.epoch,
                                                                      .step = next_step_,
                                                                      .state = view_.state,
                                                                      .samples = samples_});
  provider_ = std::make_unique<StateProvider>(
      *carrier, steady_,
      StateProvider::Options{.world = options_.world,
                             .meeting_timeout = options_.meeting_timeout,
                             .stream_timeout = options_.step_timeout,
                             .bytes_per_second = options_.stream_bytes_per_second});
}

// Makes true what `committed_` says.
void ElasticGroup::apply_commit(const std::function<void()>& apply, const View& view) {
  if (!steady_) return apply();
  steady_->apply(apply, {.lineage = view.lineage,
                         .epoch = view.epoch,
                         .step = next_step_,
                         .state = committed_->state,
                         .samples = samples_});
}

StateAccess ElasticGroup::state_access() const {
  StateAccess access = options_.state;
  if (steady_) access.write = [steady = steady_] { return steady->write(); };
  return access;
}

// They end on threads of their own, and `on_fault` is called on the caller's.
void ElasticGroup::report_streams() {
  if (!provider_) return;
  for (const Error& fault : provider_->take_faults()) options_.on_fault(fault);
}

}  // namespace shoal::collective::elastic
