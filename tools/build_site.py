#!/usr/bin/env python3
"""Builds all pages as a web site with search, into build/site: `python3 -m http.server --directory build/site/html` shows it.

docs/index.md is the menu: its headings are groups, its links are pages. The pages, and the files of the repository that they link to, are copied as
they lie, so that links work unchanged. A link that leads nowhere, or to a heading that is not there, ends the build with an error.
mkdocs and its theme come from tools/requirements-site.txt, into .venv-site, the first time; that takes Python 3.11, 3.12 or
3.13, for which the wheels are.
"""
import argparse
import hashlib
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import check_docs  # noqa: E402


# Whoever searches for the words of an error wants this page, though another one has a word of them in a heading, which counts a thousand times.
FOUND_FIRST = "---\nsearch:\n  boost: 100000\n---\n\n"


def target_of(page, link):
    return (page.parent / link.partition("#")[0]).resolve()


def copy_pages(root, source):
    """Copies all pages and the files that they link to; returns the pages."""
    found = check_docs.pages(root)
    files = set(found)
    for page in found:
        prose, _ = check_docs.split_page(page)
        for _, link in check_docs.links(prose):
            if not re.match(r"\w+:", link) and target_of(page, link).is_file():
                files.add(target_of(page, link))
    for file in files:
        copy = source / file.relative_to(root)
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(file, copy)
    errors = source / "docs" / "reference" / "errors.md"
    if errors.exists():
        errors.write_text(FOUND_FIRST + errors.read_text())
    return found


def title_of(page):
    return next((line.lstrip("# ").strip() for line in page.read_text().splitlines() if line.startswith("# ")), page.stem)


def menu(root, found):
    """[{group: [{title: page}]}] in the order of docs/index.md; a page that it names twice stands where it is first."""
    index, groups, seen = root / "docs" / "index.md", [], set()
    for line in re.split(r"\n(?=## )", index.read_text())[1:]:
        entries = []
        for link in check_docs.LINK.findall(line):
            page = target_of(index, link)
            if page in found and page not in seen:
                seen.add(page)
                entries.append({title_of(page): str(page.relative_to(root))})
        groups.append({line.splitlines()[0].removeprefix("## "): entries})
    return [{"All pages": "docs/index.md"}, *groups]


def settings(root, found, source, html):
    return {
        "site_name": "Shoal", "docs_dir": str(source), "site_dir": str(html), "use_directory_urls": False, "nav": menu(root, found),
        # No fonts or anything else from other servers: the site works offline.
        "theme": {"name": "material", "font": False, "features": ["navigation.sections", "search.highlight", "content.code.copy"]},
        "plugins": ["search"], "markdown_extensions": ["tables", "fenced_code", {"toc": {"permalink": True}}],
        "validation": {"omitted_files": "ignore", "absolute_links": "warn", "unrecognized_links": "warn", "anchors": "warn", "not_found": "warn"},
    }


def install_mkdocs(root):
    """Makes .venv-site unless it is there; returns its mkdocs."""
    requirements, venv = root / "tools" / "requirements-site.txt", root / ".venv-site"
    stamp, asked = venv / "shoal-requirements.sha256", hashlib.sha256(requirements.read_bytes()).hexdigest()
    if not stamp.exists() or stamp.read_text() != asked:
        print("site: making .venv-site (20 MB to download)", file=sys.stderr)
        subprocess.run([sys.executable, "-m", "venv", "--clear", venv], check=True)
        subprocess.run([venv / "bin" / "python", "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-input", "--no-deps",
                        "--only-binary=:all:", "--require-hashes", "--requirement", requirements], check=True)
        stamp.write_text(asked)
    return venv / "bin" / "mkdocs"


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--root", type=pathlib.Path, default=pathlib.Path(__file__).resolve().parent.parent)
    parser.add_argument("--mkdocs", type=pathlib.Path, help="another mkdocs than that of .venv-site")
    arguments = parser.parse_args()
    root = arguments.root.resolve()
    built = root / "build" / "site"
    shutil.rmtree(built, ignore_errors=True)
    source = built / "source"
    found = copy_pages(root, source)
    # JSON is YAML.
    (built / "mkdocs.yml").write_text(json.dumps(settings(root, found, source, built / "html"), indent=1))
    mkdocs = arguments.mkdocs or install_mkdocs(root)
    # The theme would advertise its successor on every build.
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    # With --quiet, mkdocs counts no warnings and --strict passes everything.
    run = subprocess.run([mkdocs, "build", "--strict", "--config-file", built / "mkdocs.yml"], env=environment, capture_output=True, text=True)
    print("".join(line for line in (run.stdout + run.stderr).splitlines(keepends=True) if not line.startswith("INFO")), end="")
    sys.exit(run.returncode)


if __name__ == "__main__":
    main()
