#include "shoal/train/config/conditions.h"
#include "shoal/train/config/key_lister.h"

namespace shoal::train {

void list_elastic_keys(std::vector<ConfigKey>& keys) {
  using E = ElasticSection;
  Lister<E>(keys, "elastic", &JobConfig::elastic)
      .key("enabled", &E::enabled, any(),
           "the ranks of this job are one member of a group of such jobs, which may join, leave "
           "and die at any step (--elastic)")
      .key("join", &E::join, any(),
           "HOST:PORT of members, of which one that answers is enough (--join); empty: this "
           "process begins the group")
      .only_with({of_elastic_jobs})
      .key("listen", &E::listen, any(),
           "the address of this host at which the other members find this one")
      .only_with({of_elastic_jobs})
      .key("ports", &E::ports, any(),
           "on which ports it listens, \"7000-7100\": the first ones that are free: at "
           "least four, because a view listens anew while the last one ends, and two more for each "
           "further rank; 0: whichever the system gives")
      .only_with({of_elastic_jobs})
      .key("advertise", &E::advertise, any(),
           "where the other members reach this one, behind an address translator: \"203.0.113.7\", "
           "at the ports on which it listens, or \"203.0.113.7:9000\", where the first port of "
           "`ports` is 9000; empty: where it listens")
      .only_with({of_elastic_jobs})
      .key("key_file", &E::key_file, any(),
           "a file with the secret that all members share; only members on one host (listen = "
           "\"127.0.0.1\") may do without")
      .only_with({of_elastic_jobs})
      .key("token_key", &E::token_key, any(),
           "of the member that begins the group: others join with tokens that are issued with the "
           "secret of this key (shoal token); 64 digits, as `shoal token key` prints them; empty: "
           "whoever knows the secret of key_file may join")
      .only_with({of_elastic_jobs})
      .key("token_file", &E::token_file, any(),
           "of a member that joins: a file with a join token, where the group asks for one "
           "(--token)")
      .only_with({of_elastic_jobs})
      .key("members", &E::members, between(1, 4096),
           "so many members are waited for by the one that begins the group, before its first step")
      .only_with({of_elastic_jobs})
      .key("suspect_after_s", &E::suspect_after_s, {0.5, 86400, true, {}},
           "seconds of silence after which a member is taken for dead, and removed")
      .only_with({of_elastic_jobs})
      .key("on_quorum_loss", &E::on_quorum_loss,
           "what members do that hear less than half of the members that keep decisions: they "
           "stop, or go on by themselves, where the others are surely dead")
      .only_with({of_elastic_jobs})
      .key("quorum_patience_s", &E::quorum_patience_s, {0, 86400, true, {}},
           "seconds that they wait before that, and before one of two members is removed that do "
           "not hear each other")
      .only_with({of_elastic_jobs})
      .key("etcd", &E::etcd, any(),
           "\"http://HOST:PORT\" (or https) of the servers of an etcd, version 3.4 or newer, which "
           "keeps what is decided in place of the members; the same for all members; empty: most "
           "of up to five members decide")
      .only_with({of_elastic_jobs})
      .key("etcd_ca_file", &E::etcd_ca_file, any(),
           "a file with the certificates that sign those of the etcd, for https; empty: those that "
           "this system trusts")
      .only_with({of_elastic_jobs, with_an_etcd})
      .key("etcd_patience_s", &E::etcd_patience_s, {0, 86400, true, {}},
           "seconds that a member which asks waits for an etcd that does not answer; nothing is "
           "decided meanwhile, and then it ends; at its start it asks each address once")
      .only_with({of_elastic_jobs, with_an_etcd})
      .key("step_timeout_s", &E::step_timeout_s, {0, 86400, true, {}},
           "seconds that one step may take with all its attempts, or a joiner's way into the "
           "group, or the wait for the end of a round (low_communication); then the member ends")
      .only_with({of_elastic_jobs});
}

}  // namespace shoal::train
