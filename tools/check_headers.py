#!/usr/bin/env python3
"""Does every file stay within the header budget of docs/architecture.md?

What public headers reach is measured with the compiler (-M), once per header and then remembered in build/header-budget.json until the
header or one of Shoal's headers below it changes. Direct includes are read from the text. Prints one line a violation, exits with 1.
"""
import argparse
import concurrent.futures
import hashlib
import json
import os
import pathlib
import re
import subprocess
import sys

import check_layers

INCLUDE = re.compile(r'^\s*#\s*include\s*[<"]([^>"]+)[>"]')
TORCH = re.compile(r"(?:ATen|c10|torch|caffe2)/")
# The C++ front end and everything that includes all operators: seconds of compile time for each file.
FORBIDDEN = re.compile(r"torch/(?!csrc/|headeronly/|library\.h$)|torch/csrc/api/|ATen/(?:ATen|Functions|NativeFunctions|Operators)\.h$")
# Heavy internals: in a room one file may include each kind. Other files go through it: a compat header, included by .cpp files only.
ADAPTED = {
    "c10d": re.compile(r"torch/csrc/distributed/"),
    "custom_function.h": re.compile(r"torch/csrc/autograd/custom_function\.h$"),
}
PUBLIC_TORCH_HEADER = "ATen/core/Tensor.h"
# Nothing but an adapter to c10d, built by itself; no other room sees its headers.
ADAPTER = "python"


def is_compat(path):
    return path.name.endswith("compat.h")


def includes(path):
    for number, line in enumerate(path.read_text(errors="replace").splitlines(), 1):
        match = INCLUDE.match(line)
        if match:
            yield number, match[1]


class Compiler:
    """Asks the compiler which files a header reaches."""

    def __init__(self, root, torch):
        self.root = root
        self.torch_include = f"{torch}/include/"
        self.command = ["g++", "-std=c++20", "-x", "c++", "-M", "-DUSE_DISTRIBUTED", "-DUSE_C10D", "-DNDEBUG", f"-I{root}/src", f"-I{root}"]
        self.command += ["-idirafter", f"{torch}/include", "-idirafter", f"{torch}/include/torch/csrc/api/include"]

    def reached(self, path):
        """The files that `path` includes, directly or not; raises CalledProcessError with the compiler's words."""
        run = subprocess.run([*self.command, str(path)], capture_output=True, text=True, check=True)
        return run.stdout.replace("\\\n", " ").split(":", 1)[1].split()

    def split(self, files):
        """(Torch's, relative to its include folder; Shoal's, relative to the root)"""
        torch = [name[len(self.torch_include):] for name in files if name.startswith(self.torch_include)]
        ours = [os.path.relpath(name, self.root) for name in files if name.startswith(f"{self.root}/")]
        return torch, ours


class Memory:
    """What was measured before. An entry holds while the command and all of Shoal's files in it have the same content."""

    def __init__(self, root, command):
        self.path = root / "build" / "header-budget.json"
        self.root = root
        self.command = " ".join(command)
        self.hashes = {}
        try:
            self.entries = json.loads(self.path.read_text())
        except (OSError, ValueError):
            self.entries = {}

    def key(self, files):
        digest = hashlib.sha256(self.command.encode())
        for name in files:
            if name not in self.hashes:
                self.hashes[name] = hashlib.sha256((self.root / name).read_bytes()).digest()
            digest.update(self.hashes[name])
        return digest.hexdigest()

    def find(self, name):
        entry = self.entries.get(name)
        try:
            return entry["torch"] if entry and entry["key"] == self.key(entry["ours"]) else None
        except OSError:  # A file it reached is gone.
            return None

    def put(self, name, torch, ours):
        self.entries[name] = {"torch": torch, "ours": ours, "key": self.key(ours)}

    def save(self):
        self.path.parent.mkdir(exist_ok=True)
        aside = self.path.with_suffix(f".{os.getpid()}")
        aside.write_text(json.dumps(self.entries))
        aside.replace(self.path)


def measure(root, compiler, headers):
    """The Torch headers that each header reaches: {header: [names]}, and what the compiler refused."""
    memory, reached, problems = Memory(root, compiler.command), {}, []

    def one(header):
        return compiler.split(compiler.reached(header))

    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        pending = {}
        for header in headers:
            name = header.relative_to(root).as_posix()
            found = memory.find(name)
            if found is None:
                pending[name] = pool.submit(one, header)
            else:
                reached[name] = found
        for name, future in pending.items():
            try:
                reached[name], ours = future.result()
                memory.put(name, reached[name], ours)
            except subprocess.CalledProcessError as error:
                problems.append(f"{name}: does not stand by itself: {error.stderr.strip().splitlines()[0]}")
    if pending:
        memory.save()
    return reached, problems


def check_public_headers(root, torch):
    compiler = Compiler(root, torch)
    headers = {path: room for room, path in check_layers.sources(root) if path.suffix == ".h" and not is_compat(path) and room != ADAPTER}
    reached, problems = measure(root, compiler, headers)
    if any(check_layers.ROOMS[room][1] for room in headers.values()):
        budget = compiler.split(compiler.reached(f"{torch}/include/{PUBLIC_TORCH_HEADER}"))[0]
    else:
        budget = []
    for header, room in headers.items():
        name = header.relative_to(root).as_posix()
        allowed = set(budget) if check_layers.ROOMS[room][1] else set()
        beyond = [file for file in reached.get(name, []) if file not in allowed]
        if beyond:
            limit = f"{PUBLIC_TORCH_HEADER} is the most it may" if allowed else f"{room} stands without Torch"
            direct = [f"{number}: {file}" for number, file in includes(header) if file in beyond]
            shown = f"line {direct[0]}" if direct else beyond[0]
            problems.append(f"{name}: reaches {len(beyond)} headers beyond its budget ({shown}); {limit}")
    return problems


def check_direct_includes(root):
    problems, adapters = [], {}
    for room, path in check_layers.sources(root):
        for number, file in includes(path):
            where = f"{path.relative_to(root)}:{number}"
            if not check_layers.ROOMS[room][1] and TORCH.match(file):
                problems.append(f"{where}: includes {file}, but {room} stands without Torch")
            if path.suffix == ".h" and file.endswith("compat.h"):
                problems.append(f"{where}: a header includes {file}; compat headers are for .cpp files")
            for kind, pattern in ADAPTED.items():
                if pattern.match(file) and room != ADAPTER:
                    adapters.setdefault((room, kind), {})[path] = where
                    if path.suffix == ".h" and not is_compat(path):
                        problems.append(f"{where}: a header includes {file}; move that into a .cpp file or a compat header")
    for (room, kind), paths in adapters.items():
        if len(paths) > 1:
            problems.append(f"{', '.join(sorted(paths.values()))}: {room} adapts to {kind} in {len(paths)} files; one compat header may")
    return problems


def check_forbidden(root):
    problems = []
    for folder in ("src", "tests", "apps", "bench", "examples"):
        for path in sorted((root / folder).rglob("*")):
            if path.suffix in (".h", ".cpp", ".cu", ".cuh"):
                problems += [f"{path.relative_to(root)}:{number}: {file} is included nowhere; name the headers that declare what is used"
                             for number, file in includes(path) if FORBIDDEN.match(file)]
    return problems


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--root", type=pathlib.Path, default=pathlib.Path(__file__).resolve().parent.parent)
    parser.add_argument("--torch", help="the folder of Torch; without it what build/torch-path names")
    arguments = parser.parse_args()
    root = arguments.root.resolve()
    torch = arguments.torch
    if not torch:
        try:
            torch = (root / "build" / "torch-path").read_text().strip()
        except OSError:
            sys.exit("check_headers: no build/torch-path; run tools/setup.sh")
    problems = check_forbidden(root) + check_direct_includes(root) + check_public_headers(root, torch)
    for problem in problems:
        print(problem)
    sys.exit(1 if problems else 0)


if __name__ == "__main__":
    main()
