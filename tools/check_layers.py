#!/usr/bin/env python3
"""Do the rooms stand on each other as docs/architecture.md says?

Checks that includes go downward only and are covered by the link lists of CMake, that these go downward too, that this file, the
table in the page and the lists in CMakeLists.txt agree, and that every test source has its own namespace. Prints one line a violation and exits with 1.
"""
import argparse
import pathlib
import re
import sys

# room: (floor, whether it may stand on LibTorch). The table of docs/architecture.md, §2.
ROOMS = {
    "base": (0, False),
    "wire": (1, False),
    "model": (1, False),
    "collective": (2, False),
    "schedule": (2, False),
    "plan": (3, False),
    "comm": (3, True),
    "mesh": (4, True),
    "ops": (4, True),
    "data": (4, False),
    "forecast": (4, False),
    "nn": (5, True),
    "optim": (5, True),
    "parallel": (6, True),
    "parallel/recipe": (6, False),
    "checkpoint": (6, True),
    "checkpoint/format": (6, False),
    "train/config": (7, False),
    "train": (7, True),
    "apps/shoal": (8, True),
    "python": (8, True),
}
INCLUDE = re.compile(r'^\s*#\s*include\s*[<"](?:shoal/|(?=(?:apps|python|tests|bench)/))([^>"]+)[>"]')
TABLE_ROW = re.compile(r"^\| *(\d) *\| *`([\w/]+?)/` *\|.*\| *(\w*) *\|$")


def room_of(path):
    """The room that a path below src/shoal/ (or below the root, for apps/ and python/) lies in: the longest name that leads to it."""
    matches = [room for room in ROOMS if path.startswith(room + "/")]
    return max(matches, key=len, default=None)


def may_use(user, used):
    """May `user` include and link `used`?"""
    (floor, torch), (used_floor, used_torch) = ROOMS[user], ROOMS[used]
    if used_torch and not torch:
        return False
    # A room may use the room inside it (train uses train/config), never the other way round.
    return used_floor < floor or used.startswith(user + "/")


def sources(root):
    """Every C++ file of a room, as (room, path)."""
    for base in (root / "src" / "shoal", root):
        for room in ROOMS:
            if (room in ("apps/shoal", "python")) == (base == root):
                for path in sorted((base / room).rglob("*")):
                    if path.suffix in (".h", ".cpp", ".cu", ".cuh") and room_of(path.relative_to(base).as_posix()) == room:
                        yield room, path


def link_lists(root):
    """The rooms that each room's CMakeLists.txt links: {room: (path, [rooms], has the word TORCH)}, and what is wrong with the calls."""
    lists, problems = {}, []
    for room in ROOMS:
        path = root / "src" / "shoal" / room / "CMakeLists.txt"
        if not path.exists():
            continue
        text = re.sub(r"#.*", "", path.read_text())
        call = re.search(r"shoal_library\s*\(\s*([^)]*)\)", text)
        if not call:
            problems.append(f"{path.relative_to(root)}: no shoal_library() call")
            continue
        words = call[1].split()
        if words[0] != room:
            problems.append(f"{path.relative_to(root)}: makes the room '{words[0]}', but the folder is '{room}'")
        if re.search(r"target_link_libraries\s*\([^)]*shoal_", text.replace(f"shoal_{room.replace('/', '_')}", "")):
            problems.append(f"{path.relative_to(root)}: links a room beside LINKS of shoal_library()")
        links, inside = [], False
        for word in words[1:]:
            if word.isupper():
                inside = word == "LINKS"
            elif inside:
                links.append(word)
        lists[room] = (path, links, "TORCH" in words)
    return lists, problems


def closure(room, lists):
    """The rooms reached through link lists."""
    seen, todo = set(), [room]
    while todo:
        for link in lists.get(todo.pop(), (None, [], False))[1]:
            if link not in seen:
                seen.add(link)
                todo.append(link)
    return seen


def check_links(root):
    lists, problems = link_lists(root)
    for room, (path, links, torch) in lists.items():
        where = path.relative_to(root)
        if torch and not ROOMS[room][1]:
            problems.append(f"{where}: {room} has no LibTorch by the table, but says TORCH")
        for link in links:
            if link not in ROOMS:
                problems.append(f"{where}: links '{link}', which is no room")
            elif not may_use(room, link):
                problems.append(f"{where}: {describe(room)} may not link {describe(link)}")
    return problems


def check_includes(root):
    lists, _ = link_lists(root)
    problems = []
    for room, path in sources(root):
        reached = closure(room, lists)
        for number, line in enumerate(path.read_text(errors="replace").splitlines(), 1):
            match = INCLUDE.match(line)
            if not match:
                continue
            where = f"{path.relative_to(root)}:{number}"
            target = match[1]
            if target.startswith(("tests/", "bench/")):
                problems.append(f"{where}: a room may not include {target}")
                continue
            used = room_of(target)
            if used is None:
                problems.append(f"{where}: includes shoal/{target}, which lies in no room")
            elif used != room and not may_use(room, used):
                problems.append(f"{where}: {describe(room)} may not include {describe(used)}")
            elif used != room and room in lists and used not in reached:
                problems.append(f"{where}: includes {used}, which LINKS of {lists[room][0].relative_to(root)} does not reach")
    return problems


def check_table(root):
    page = root / "docs" / "architecture.md"
    if not page.exists():
        return ["docs/architecture.md: missing"]
    rows = {}
    for line in page.read_text().splitlines():
        row = TABLE_ROW.match(line)
        if row:
            rows[row[2]] = (int(row[1]), row[3])
    problems = []
    for room in sorted(ROOMS.keys() | rows.keys()):
        if room not in rows or room not in ROOMS:
            problems.append(f"docs/architecture.md: the room {room} is missing {'there' if room not in rows else 'in tools/check_layers.py'}")
            continue
        floor, torch = rows[room]
        if floor != ROOMS[room][0] or (torch and (torch != "no") != ROOMS[room][1]):
            problems.append(f"docs/architecture.md: {room} is on floor {floor}, Torch: {torch or 'unsaid'}; tools/check_layers.py says {ROOMS[room]}")
    return problems


def check_room_lists(root):
    """The two lists of CMakeLists.txt: first the rooms without Torch, then, under SHOAL_TORCH_ROOMS, those with it; each in floor order."""
    text = (root / "CMakeLists.txt").read_text()
    lists = [match.split() for match in re.findall(r"foreach\s*\(\s*room\s+([^)]*)\)", text)]
    if len(lists) != 2:
        return [f"CMakeLists.txt: {len(lists)} lists of rooms, 2 are expected"]
    problems = []
    for named, torch in zip(lists, (False, True)):
        expected = [room for room, (floor, has) in ROOMS.items() if has == torch and floor < 8]
        if sorted(named) != sorted(expected):
            problems.append(f"CMakeLists.txt: the rooms {'with' if torch else 'without'} Torch are {', '.join(expected)}; it lists {', '.join(named)}")
        elif any(ROOMS[below][0] > ROOMS[above][0] for below, above in zip(named, named[1:])):
            problems.append(f"CMakeLists.txt: {' '.join(named)} is not in floor order")
    return problems


def check_folders(root):
    known = {room.split("/")[0] for room in ROOMS}
    folders = (path.name for path in (root / "src" / "shoal").iterdir() if path.is_dir())
    return [f"src/shoal/{name}: no room of that name stands in the table" for name in sorted(folders) if name not in known]


def check_tests(root):
    """Test sources that are compiled in one batch hide no name of each other: each has a namespace of its own."""
    problems = []
    for path in sorted((root / "tests").rglob("*_test.cpp")):
        spaces = re.findall(r"^namespace (shoal::[\w:]*) \{", path.read_text(errors="replace"), re.M)
        if not spaces or any(not space.endswith(f"::{path.stem}") for space in spaces):
            problems.append(f"{path.relative_to(root)}: its namespace must be shoal::<room>::{path.stem}")
    return problems


def describe(room):
    return f"{room} (floor {ROOMS[room][0]}{'' if ROOMS[room][1] else ', no Torch'})"


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--root", type=pathlib.Path, default=pathlib.Path(__file__).resolve().parent.parent)
    root = parser.parse_args().root
    problems = []
    for check in (check_table, check_room_lists, check_folders, check_links, check_includes, check_tests):
        problems += check(root)
    for problem in problems:
        print(problem)
    sys.exit(1 if problems else 0)


if __name__ == "__main__":
    main()
