"""tools/check_docs.py finds links, targets, subcommands and files that do not exist."""
import subprocess
import unittest

import project

PAGE = """# Title
See [the tour](docs/tour.md#second-stop), [above](#title) and [elsewhere](https://example.org/x).
```sh
$ make build JOBS=2   # builds
shoal train examples/job.toml --set a.b=c
```
"""


class DocsTest(project.ProjectTest):
    def setUp(self):
        super().setUp()
        subprocess.run(["git", "init", "--quiet", self.root], check=True)
        self.write("Makefile", "build: ## builds\n\techo\n")
        self.write("docs/tour.md", "# Tour\n## Second stop\n")
        self.write("apps/shoal/train.cpp", 'app.add_subcommand("train", "trains");\n')
        self.write("examples/job.toml", "")

    def check_page(self, old="", new=""):
        self.assertIn(old, PAGE)
        self.write("README.md", PAGE.replace(old, new) if old else PAGE)
        return self.run_tool("check_docs.py")

    def test_clean(self):
        self.assert_passes(self.check_page())

    def test_messages_of_errors(self):
        self.write("src/shoal/base/check.cpp", 'throw Error(fmt::format("no room for {} bytes "\n    "in {}", size, place));\n')
        self.write("docs/reference/errors.md", "| message | why |\n|---|---|\n| `no room for … bytes in` | full |\n")
        self.assert_passes(self.check_page())
        self.write("docs/reference/errors.md", "| message | why |\n|---|---|\n| `no space for … bytes` | full |\n")
        self.assert_fails(self.check_page(), "errors.md:3", "'no space for'")

    def test_names_of_the_architecture(self):
        self.write("src/shoal/base/error.h", "class Error {};")
        true = "# A\n`base/` has `Error` (`base/error.h`).\n- It flies. *Planned*: `Wings`\n  and `wings/`.\n"
        self.write("docs/architecture.md", true)
        self.assert_passes(self.check_page())
        for old, new in (("`base/`", "`roof/`"), ("`Error`", "`shoal::Terror`"), ("error.h", "errors.h"),
                         ("*Planned*: `Wings`", "`Wings`")):
            self.write("docs/architecture.md", true.replace(old, new))
            self.assert_fails(self.check_page(), "docs/architecture.md")

    def test_the_index_leads_to_every_page(self):
        self.write("docs/index.md", "# All\n[tour](tour.md)\n")
        self.assert_passes(self.check_page())
        self.write("docs/how_to/lost.md", "# Lost\n")
        self.assert_fails(self.check_page(), "docs/index.md", "docs/how_to/lost.md")

    def test_planted(self):
        self.assert_fails(self.check_page("docs/tour.md", "docs/tuor.md"), "README.md:2", "docs/tuor.md")
        self.assert_fails(self.check_page("#second-stop", "#third-stop"), "README.md:2", "#third-stop")
        self.write("docs/index.md", "# All\n[the\ntour](tuor.md), [tour](tour.md)\n")
        self.assert_fails(self.check_page(), "docs/index.md:2", "tuor.md")
        (self.root / "docs/index.md").unlink()
        self.assert_fails(self.check_page("make build", "make biuld"), "README.md:4", "'biuld'")
        self.assert_fails(self.check_page("shoal train", "shoal rain"), "README.md:5", "'rain'")
        self.assert_fails(self.check_page("shoal train", "build/release/bin/shoal train"), "README.md:5", "pages say shoal")
        self.assert_fails(self.check_page("examples/job.toml", "examples/gone.toml"), "README.md:5", "examples/gone.toml")


if __name__ == "__main__":
    unittest.main()
