"""Starts TorchTitan 0.3 on CPUs, which it does not do by itself; the arguments are those of `torchtitan.train` (docs/pytorch.md shows the command).

Two things stand in for what accelerators have:
- the module of the device, which TorchTitan asks for names, memory and the device in use;
- attention. FlexAttention has no backward pass on CPUs. PyTorch's own is causal over the whole sequence, also across the documents in it.
"""
import dataclasses
import os
import resource
import types

from torchtitan.tools import utils


def nothing(*_):
    pass


def memory_stats(*_):
    peak = 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return {"active_bytes.all.peak": peak, "reserved_bytes.all.peak": peak, "num_alloc_retries": 0, "num_ooms": 0}


memory = types.SimpleNamespace(total_memory=os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
# Other modules of TorchTitan take them from here as they are imported.
utils.device_type = "cpu"
utils.device_module = types.SimpleNamespace(
    current_device=lambda: 0, device_count=lambda: 1, set_device=nothing, get_device_name=lambda *_: "CPU", get_device_properties=lambda *_: memory,
    memory_stats=memory_stats, reset_peak_memory_stats=nothing, empty_cache=nothing, synchronize=nothing)

from torchtitan.models.common import attention, config_utils  # noqa: E402


class Attention(attention.ScaledDotProductAttention):
    @dataclasses.dataclass(kw_only=True, slots=True)
    class Config(attention.ScaledDotProductAttention.Config):
        pass

    def forward(self, q_BLNH, k_BLNH, v_BLNH, *, attention_masks=None, **more):
        return super().forward(q_BLNH, k_BLNH, v_BLNH, **more)


config_utils.get_attention_config = lambda backend: Attention.Config()

from torchtitan.train import main  # noqa: E402

main()
