#include "shoal/train/config/conditions.h"
#include "shoal/train/config/key_lister.h"

namespace shoal::train {

void list_low_communication_keys(std::vector<ConfigKey>& keys) {
  using L = LowCommunicationSection;
  Lister<L>(keys, "low_communication", &JobConfig::low_communication)
      .key("method", &L::method,
           "members train by themselves and bring their parameters together now and then; no "
           "gradient travels between them. Members are the data-parallel ranks, each with its "
           "tensor-, context- and pipeline-parallel ranks; with zero_stage 1 to 3 the copies of "
           "data_parallel_replicate_degree. local_sgd: they take the mean; diloco: an outer "
           "optimizer follows the mean difference; streaming_diloco: fragment by fragment, while "
           "training goes on")
      .key("every", &L::every, between(1, 1e9),
           "steps between two exchanges of the same parameters")
      .only_with({of_members})
      .key("learning_rate", &L::learning_rate, above(0),
           "diloco, streaming_diloco: learning rate of the outer optimizer")
      .only_with({of_members, of_an_outer_optimizer})
      .key("momentum", &L::momentum, from_to_below(0, 1),
           "diloco, streaming_diloco: Nesterov's momentum of the outer optimizer; 0: none")
      .only_with({of_members, of_an_outer_optimizer})
      .key("codec", &L::codec,
           "how differences travel: as fp32 (none), or rounded to 16, 8, 4 or 3 bits, with what "
           "rounding took added the next time")
      .only_with({of_members})
      .key("rounding", &L::rounding,
           "of the codec: to the nearest code, or up and down at random, so that the mean of many "
           "exchanges is right but the error of each is larger")
      .only_with({of_members, of_a_codec})
      .key(
          "shares", &L::shares,
          "how the members of an elastic group divide the micro-batches of each step of a round: "
          "evenly, or by_speed, as each was in the round before: then slow ones hold up the others "
          "less, and who trains what depends on the machines")
      .only_with({of_members, of_elastic_jobs})
      .key("fragments", &L::fragments, between(1, 1e6),
           "streaming_diloco: equal parts of the parameters, exchanged one after the other")
      .only_with({of_members, of_streaming})
      .key("overlap_steps", &L::overlap_steps, between(0, 1e9),
           "streaming_diloco: steps for which a fragment travels while training goes on; at most "
           "every / fragments")
      .only_with({of_members, of_streaming})
      .key("mix", &L::mix, from_to_below(0, 1),
           "streaming_diloco: the share that a member keeps of its own parameters when a result "
           "arrives")
      .only_with({of_members, of_streaming});
}

}  // namespace shoal::train
