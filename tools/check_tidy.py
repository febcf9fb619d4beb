#!/usr/bin/env python3
"""Do the C++ sources keep the rules of .clang-tidy?

Runs clang-tidy 14 over every translation unit of a configured build (build/release), or with
--changed over those that the last commit or the working tree changed, and prints one line a
violation. All of them take some ten minutes on two cores. Headers that the build precompiles with gcc are precompiled here with clang,
because parsing them takes longer than everything else. With --fix the sources are mended where
clang-tidy knows how. Exits with 1 when anything is wrong.
"""
import argparse
import concurrent.futures
import json
import os
import pathlib
import re
import shlex
import shutil
import subprocess
import sys

WARNING = re.compile(r"^(\S+?):(\d+):\d+: (?:warning|error): (.*)$", re.MULTILINE)
PRECOMPILED = re.compile(r"-include (\S+/cmake_pch\.hxx)")
# Options of gcc that clang 14 does not know, those that belong to gcc's precompiled headers, and
# OpenMP, whose header clang has in a package of its own.
FOREIGN = re.compile(r"-fopenmp|-fpch-preprocess|-Winvalid-pch|-Werror|-Wno-stringop-\S+"
                     r"|-Wno-restrict|-Wno-maybe-\S+")


def tool(name):
    """clang-tidy or clang++ of version 14: the releases disagree with one another."""
    for candidate in (f"{name}-14", name):
        path = shutil.which(candidate)
        if path:
            version = subprocess.run([path, "--version"], capture_output=True, text=True).stdout
            if " 14." in version:
                return path
    package = name.replace("++", "")
    sys.exit(f"check_tidy: {name} 14 is needed (Debian 12's {package}, Ubuntu 24.04's {package}-14)")


def alone(entries):
    """Entries for the sources of a batch (cmake/targets.cmake) in the place of the batch's own."""
    for entry in entries:
        batch = pathlib.Path(entry["file"])
        if "/Unity/" not in entry["file"] or not batch.exists():
            yield entry
            continue
        for source in re.findall(r'^#include "(.*)"', batch.read_text(), re.MULTILINE):
            yield {**entry, "file": source,
                   "command": entry["command"].replace(entry["file"], source)}


def compile_commands(build):
    path = build / "compile_commands.json"
    if not path.exists():
        sys.exit(f"check_tidy: {path} is missing; run 'cmake --preset release'")
    seen = set()
    for entry in alone(json.loads(path.read_text())):
        if entry["file"] not in seen and build not in pathlib.Path(entry["file"]).parents:
            seen.add(entry["file"])
            yield entry


def precompile(clang, headers, command, directory, output):
    """Precompiles one of CMake's headers with the options of a command that includes it."""
    options = []
    words = iter(shlex.split(command)[1:])
    for word in words:
        if word in ("-o", "-c", "-include"):
            next(words)
        else:
            options.append(word)
    subprocess.run([clang, *options, "-x", "c++-header", headers, "-o", output], cwd=directory,
                   check=True, capture_output=True)


def prepare(build, folder, wanted):
    """Writes a compilation database for clang; returns the files in it, all or those wanted."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    clang, made, entries = tool("clang++"), {}, []
    for entry in compile_commands(build):
        if wanted is not None and entry["file"] not in wanted:
            continue
        command = entry["command"]
        # A launcher such as ccache stands before the compiler.
        command = command[command.index("c++ ") :] if "c++ " in command else command
        command = FOREIGN.sub("", command)
        headers = PRECOMPILED.search(command)
        if headers:
            pie = "-fPIE" in command
            key = (headers[1], pie)
            if key not in made:
                made[key] = folder / f"{len(made)}.pch"
                # The file is generated when the build starts; its text is all that is needed.
                precompile(clang, headers[1], command, entry["directory"], made[key])
            command = command.replace(headers[0], f"-include-pch {made[key]}")
        entries.append({**entry, "command": command})
    (folder / "compile_commands.json").write_text(json.dumps(entries))
    return [entry["file"] for entry in entries]


def changed(root):
    """The files that the last commit or the working tree changed; a header stands for its .cpp."""
    listed = subprocess.run(["git", "diff", "--name-only", "HEAD~1"], cwd=root,
                            capture_output=True, text=True)
    if listed.returncode != 0:
        return None  # no commit before this one: everything is new
    return {str((root / name).with_suffix(".cpp")) for name in listed.stdout.splitlines()}


def tidy(program, folder, file, extra):
    command = [program, "-p", str(folder), "-quiet", *extra, file]
    return subprocess.run(command, capture_output=True, text=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--root", type=pathlib.Path,
                        default=pathlib.Path(__file__).resolve().parent.parent)
    parser.add_argument("--fix", action="store_true")
    parser.add_argument("--changed", action="store_true")
    parser.add_argument("files", nargs="*", help="only sources whose path contains one of these")
    arguments = parser.parse_args()
    root = arguments.root.resolve()
    os.chdir(root)
    program, folder = tool("clang-tidy"), root / "build" / "tidy"
    wanted = changed(root) if arguments.changed else None
    files = prepare(root / "build" / "release", folder, wanted)
    if arguments.files:
        files = [file for file in files if any(part in file for part in arguments.files)]
    extra = ["-fix"] if arguments.fix else []
    # Two fixes of one header must not meet: with --fix one file after the other.
    workers = 1 if arguments.fix else os.cpu_count()
    problems, broken = set(), []
    with concurrent.futures.ThreadPoolExecutor(workers) as pool:
        jobs = {file: pool.submit(tidy, program, folder, file, extra) for file in files}
        for file, job in jobs.items():
            outcome = job.result()
            found = WARNING.findall(outcome.stdout)
            problems.update((os.path.relpath(where, root), int(line), text)
                            for where, line, text in found)
            if outcome.returncode and not found:
                broken.append(f"{os.path.relpath(file, root)}: {outcome.stderr.strip()}")
    for where, line, text in sorted(problems):
        print(f"{where}:{line}: {text}")
    for text in broken:
        print(text)
    sys.exit(1 if problems or broken else 0)


if __name__ == "__main__":
    main()
