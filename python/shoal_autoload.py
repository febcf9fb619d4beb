"""What PyTorch calls at the end of `import torch` in every program of a Python in which Shoal is installed.

The wheel names `load` as an entry point of the group "torch.backends". A failure here would make `import torch` fail for programs that have
nothing to do with Shoal, so nothing is imported unless the environment asks for it.
"""
import os


def load():
    """Makes Shoal the CPU backend wherever this program asks for Gloo, if SHOAL_REPLACE_GLOO=1."""
    if os.environ.get("SHOAL_REPLACE_GLOO") == "1":
        from shoal import _replace_gloo
        _replace_gloo.install()
