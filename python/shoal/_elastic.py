"""Members that train together and come and go."""
from shoal._c10d import ElasticMember, ElasticStep, ElasticView, join_token

__all__ = ["ElasticGroup", "ElasticStep", "ElasticView", "join_token"]


class ElasticGroup(ElasticMember):
    """Processes that train together, join, leave and may die. What one of them does in a step becomes true on all or on none.

        group = shoal.ElasticGroup(state, key="a secret", join=["10.0.0.1:7000"])
        while group.next_step < steps:
            group.step(attempt)
        group.leave()

    `state` maps names to all tensors that a step changes, contiguous and in host memory. Without `join` this member begins a group, with the
    state as it is. With it, it joins the group of which a member is found at one of these addresses, and `state` is overwritten by the
    group's. docs/concepts/elastic.md says what is promised. One thread at a time. RuntimeError says what went wrong.
    """

    def __init__(self, state, *, key, join=(), listen="127.0.0.1", ports="", advertise=(), tls="auto", cluster="shoal", admission_secret="",
                 token="", suspect_after_s=2.0, meeting_timeout_s=60.0, step_timeout_s=1800.0, on_fault=None):
        super().__init__(dict(state), key=key, join=list(join), listen=listen, ports=ports, advertise=list(advertise), tls=tls, cluster=cluster,
                         admission_secret=admission_secret, token=token, suspect_after_s=suspect_after_s, meeting_timeout_s=meeting_timeout_s,
                         step_timeout_s=step_timeout_s, on_fault=on_fault)
