#!/usr/bin/env python3
"""Prints the pinned file list of the header corpus: tools/pin_headers.py <torch>/include > src/shoal/data/headers.list

Left out: what a generator wrote (the operator headers of ATen/ops, generated code of autograd and lazy tensors, protobuf, tables) and
everything that is not a C++ or CUDA header. `shoal data prepare` checks every file against the list, so a corpus is the same bytes everywhere.
"""
import os
import re
import sys
import zlib

SUFFIXES = (".h", ".hpp", ".cuh", ".inl")
GENERATED_FOLDERS = ("ATen/ops/", "torch/csrc/autograd/generated/", "torch/csrc/lazy/generated/")
# Generated, though they do not say so in a way that the pattern below finds.
GENERATED_FILES = {"ATen/VmapGeneratedPlumbing.h", "ATen/RegistrationDeclarations.h", "ATen/core/TensorBody.h", "sleef.h"}
GENERATED = re.compile(rb"@generated|automatically generated|auto-?generated|generated (by|from)|do not edit", re.IGNORECASE)


def main():
    root = sys.argv[1]
    lines, total = [], 0
    for folder, _, names in os.walk(root):
        for name in names:
            path = os.path.relpath(os.path.join(folder, name), root)
            if not name.endswith(SUFFIXES) or path.endswith(".pb.h") or path.startswith(GENERATED_FOLDERS) or path in GENERATED_FILES:
                continue
            with open(os.path.join(folder, name), "rb") as file:
                text = file.read()
            if GENERATED.search(text[:2000]):
                continue
            lines.append((path, "%08x %d %s" % (zlib.crc32(text), len(text), path)))
            total += len(text)
    lines.sort()
    print("# The header corpus: CRC-32, bytes and path below <torch>/include of the wheel torch 2.11.0 (Linux, x86-64).")
    print("# %d files, %d bytes. Written by tools/pin_headers.py." % (len(lines), total))
    for _, line in lines:
        print(line)


if __name__ == "__main__":
    main()
