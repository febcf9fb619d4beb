"""tools/build_site.py gives mkdocs the pages as they lie, what they link to, and the menu of docs/index.md. mkdocs is played by a small program."""
import json
import subprocess
import unittest

import project

MKDOCS = """#!/bin/sh
echo "$@" >{root}/calls
echo "INFO    -  Building"
[ {code} = 0 ] || echo "WARNING -  a link leads nowhere" >&2
exit {code}
"""


class SiteTest(project.ProjectTest):
    def setUp(self):
        super().setUp()
        subprocess.run(["git", "init", "--quiet", self.root], check=True)
        self.write("README.md", "# Shoal\nSee [all](docs/index.md) and [the source](src/a.h) and `[no](link.md)`.\n")
        self.write("src/a.h", "int a;\n")
        self.write("src/b.h", "int b;\n")
        self.write("docs/index.md", "# All\n[one](one.md)\n\n## Start\n\n[two](sub/two.md#part), [one](one.md)\n\n## More\n\n[Shoal](../README.md), [two](sub/two.md)\n")
        self.write("docs/one.md", "# Page one\n![picture](one.svg)\n")
        self.write("docs/one.svg", "<svg/>")
        self.write("docs/reference/errors.md", "# Errors\nSee [the\nother source](../../src/c.h).\n")
        self.write("src/c.h", "int c;\n")
        self.write("docs/sub/two.md", "# Page two\n## Part\n[web](https://example.org/x.md)\n")

    def build(self, code=0):
        mkdocs = self.write("mkdocs", MKDOCS.format(root=self.root, code=code))
        mkdocs.chmod(0o755)
        return self.run_tool("build_site.py", "--mkdocs", str(mkdocs))

    def test_pages_files_and_menu(self):
        self.assert_passes(self.build())
        built = self.root / "build" / "site"
        copied = sorted(str(path.relative_to(built / "source")) for path in (built / "source").rglob("*") if path.is_file())
        self.assertEqual(copied, ["README.md", "docs/index.md", "docs/one.md", "docs/one.svg", "docs/reference/errors.md", "docs/sub/two.md", "src/a.h", "src/c.h"])
        self.assertTrue((built / "source/docs/reference/errors.md").read_text().startswith("---\nsearch:\n  boost: "))
        settings = json.loads((built / "mkdocs.yml").read_text())
        # A page that is named twice stands where it is first; anchors do not count.
        self.assertEqual(settings["nav"], [{"All pages": "docs/index.md"}, {"Start": [{"Page two": "docs/sub/two.md"}, {"Page one": "docs/one.md"}]},
                                           {"More": [{"Shoal": "README.md"}]}])
        calls = (self.root / "calls").read_text()
        self.assertIn("--strict", calls)
        # It would keep --strict from counting warnings.
        self.assertNotIn("--quiet", calls)

    def test_a_page_that_was_removed_does_not_stay(self):
        self.build()
        (self.root / "docs/sub/two.md").unlink()
        self.build()
        self.assertFalse((self.root / "build/site/source/docs/sub/two.md").exists())

    def test_mkdocs_decides(self):
        self.assert_fails(self.build(code=1), "WARNING", "a link leads nowhere")


if __name__ == "__main__":
    unittest.main()
