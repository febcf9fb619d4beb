#!/usr/bin/env python3
"""Do the pages point at things that exist?

In every .md file that git knows: relative links and their anchors, and in ```sh blocks the make targets, the subcommands of shoal (by this
name) and the files that commands name. docs/index.md leads to every page of docs/. In docs/reference/errors.md: the messages, which must stand in the sources. Prints one line a violation and exits with 1.
"""
import argparse
import pathlib
import re
import shlex
import subprocess
import sys

LINK = re.compile(r"(?<!`)\[[^\]]*\]\(([^)\s]+)(?:\s+\"[^\"]*\")?\)")
FENCE = re.compile(r"^\s*```\s*(\w*)")
REPOSITORY_PATH = re.compile(r"^(?:\./)?(?:examples|tools|docs|bench/peers|tests|src|cmake)/\S+$")


def pages(root):
    listed = subprocess.run(["git", "ls-files", "-co", "--exclude-standard", "*.md"], cwd=root, capture_output=True, text=True, check=True)
    return [root / name for name in listed.stdout.splitlines() if (root / name).exists()]


def split_page(path):
    """(the lines outside code blocks, the lines of ```sh blocks), each as [(number, line)]"""
    prose, commands, language = [], [], None
    for number, line in enumerate(path.read_text().splitlines(), 1):
        fence = FENCE.match(line)
        if fence:
            language = None if language is not None else fence[1]
        elif language is None:
            prose.append((number, re.sub(r"`[^`]*`", "``", line)))
        elif language in ("sh", "bash", "console"):
            commands.append((number, line))
    return prose, commands


def links(prose):
    """(line, target) of each link. The words of a link may go on in the next line."""
    text = "\n".join(line for _, line in prose)
    for link in LINK.finditer(text):
        yield prose[text.count("\n", 0, link.start())][0], link[1]


def anchors(path):
    """The names that GitHub gives to the headings of a page."""
    names = set()
    for line in path.read_text().splitlines():
        if line.startswith("#"):
            title = re.sub(r"[^\w\- ]", "", line.lstrip("#").strip().lower())
            names.add(title.replace(" ", "-"))
    return names


def check_links(root, path, prose):
    for number, target in links(prose):
        if re.match(r"\w+:", target):
            continue
        name, _, anchor = target.partition("#")
        file = (path.parent / name).resolve() if name else path
        if not file.exists():
            yield f"{path.relative_to(root)}:{number}: {target} does not exist"
        elif anchor and file.suffix == ".md" and anchor not in anchors(file):
            yield f"{path.relative_to(root)}:{number}: {name or path.name} has no heading #{anchor}"


def make_targets(root):
    return set(re.findall(r"^([a-z][\w-]*):", (root / "Makefile").read_text(), re.MULTILINE))


def subcommands(root):
    """The subcommands of the shoal program; None before it is written."""
    names = set()
    for path in (root / "apps" / "shoal").rglob("*.cpp"):
        names.update(re.findall(r"add_subcommand\(\s*\"([\w-]+)\"", path.read_text()))
    return names or None


def check_commands(root, path, commands, targets, known):
    for number, line in commands:
        where = f"{path.relative_to(root)}:{number}"
        try:
            words = shlex.split(line.strip().removeprefix("$ "), comments=True)
        except ValueError:
            continue
        while words and re.match(r"\w+=", words[0]):
            words.pop(0)
        if not words:
            continue
        if words[0] == "make":
            for word in words[1:]:
                if re.fullmatch(r"[a-z][\w-]*", word) and word not in targets:
                    yield f"{where}: make has no target '{word}'"
        if words[0].endswith("bin/shoal"):
            yield f"{where}: says {words[0]}; pages say shoal, which `make install` puts on the PATH"
        if words[0].endswith("shoal") and known is not None and len(words) > 1 and words[1][0] != "-" and words[1] not in known:
            yield f"{where}: shoal has no subcommand '{words[1]}'"
        for word in words[1:]:
            if REPOSITORY_PATH.match(word) and "*" not in word and not (root / word).exists():
                yield f"{where}: {word} does not exist"


def source_text(root):
    """The sources in one piece, string literals that go on in the next line joined."""
    text = "\n".join(path.read_text() for folder in ("src", "apps") for path in sorted((root / folder).rglob("*.cpp")))
    return re.sub(r"\"\s*\n\s*\"", "", text)


def check_messages(root):
    """First cells of the tables of errors: each part of a message between two … is written somewhere in the sources."""
    page = root / "docs" / "reference" / "errors.md"
    if not page.exists():
        return
    sources = source_text(root)
    for number, line in enumerate(page.read_text().splitlines(), 1):
        message = re.match(r"\| `([^`]+)` \|", line)
        for part in message[1].split("…") if message else ():
            if part.strip() not in sources:
                yield f"{page.relative_to(root)}:{number}: no source says '{part.strip()}'"


def check_programs(root, path):
    """A block of C++ stands in a file of examples/, which is built and run."""
    programs = [file.read_text() for file in sorted((root / "examples").rglob("*.cpp"))]
    for block in re.findall(r"^```cpp\n(.*?)^```", path.read_text(), re.MULTILINE | re.DOTALL):
        if not any(block in program for program in programs):
            yield f"{path.relative_to(root)}: no file of examples/ holds its C++: {block.strip()[:60]}"


def words_of(root):
    """Every identifier of the sources."""
    folders = ("src", "apps", "python", "cmake", "tests")
    paths = (path for folder in folders for path in (root / folder).rglob("*")
             if path.suffix in (".h", ".cpp", ".py", ".cmake", ".toml"))
    return set(re.findall(r"[A-Za-z_]\w*", "\n".join(path.read_text() for path in paths)))


def check_names(root):
    """Folders, files and symbols in backticks on docs/architecture.md; paragraphs and list items
    that hold the word Planned may name what does not exist yet."""
    page = root / "docs" / "architecture.md"
    if not page.exists():
        return
    known = words_of(root)
    blocks = re.split(r"\n(?=\n|[-|] |\d+\. )", page.read_text())
    for block in blocks:
        if "*Planned*" in block:
            # The sentences before it tell what is there.
            block = block.partition("*Planned*")[0]
        for name in re.findall(r"`([^`\n]+)`", block):
            if re.fullmatch(r"[\w./]+/", name) or re.fullmatch(r"[\w./]+\.(h|cpp|py|md|cmake)", name):
                bases = (root, root / "src" / "shoal", root / "docs")
                outside = name.startswith(("torch/", "ATen/"))
                if not outside and not any((base / name).exists() for base in bases):
                    yield f"{page.relative_to(root)}: {name} does not exist"
            elif re.fullmatch(r"[A-Za-z_][\w:]*", name):
                for part in name.split("::"):
                    if part not in known:
                        yield f"{page.relative_to(root)}: no source has the name {name}"


def check_index(root):
    """docs/index.md leads to every page of docs/."""
    index = root / "docs" / "index.md"
    if not index.exists():
        return
    linked = {(index.parent / target.partition("#")[0]).resolve() for target in LINK.findall(index.read_text())}
    for page in pages(root):
        if (root / "docs") in page.parents and page != index and page.resolve() not in linked:
            yield f"{index.relative_to(root)}: no link leads to {page.relative_to(root)}"


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--root", type=pathlib.Path, default=pathlib.Path(__file__).resolve().parent.parent)
    root = parser.parse_args().root.resolve()
    targets, known, problems = make_targets(root), subcommands(root), []
    for path in pages(root):
        prose, commands = split_page(path)
        problems += check_links(root, path, prose)
        problems += check_commands(root, path, commands, targets, known)
        problems += check_programs(root, path)
    problems += check_messages(root)
    problems += check_names(root)
    problems += check_index(root)
    for problem in problems:
        print(problem)
    sys.exit(1 if problems else 0)


if __name__ == "__main__":
    main()
