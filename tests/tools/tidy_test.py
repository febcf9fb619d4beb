"""tools/check_tidy.py finds what .clang-tidy forbids, and nothing in what it allows."""
import json

import project

CLEAN = """int twice(int x) {
  const int y = 2 * x;
  if (y < 0) return 0;
  return y;
}
"""


class TidyTest(project.ProjectTest):
    def setUp(self):
        super().setUp()
        self.copy(".clang-tidy")

    def check_source(self, text):
        self.write("src/shoal/base/a.cpp", text)
        file = str(self.root / "src/shoal/base/a.cpp")
        build = self.root / "build" / "release"
        build.mkdir(parents=True, exist_ok=True)
        entry = {"directory": str(build), "file": file, "command": f"/usr/bin/c++ -c {file}"}
        (build / "compile_commands.json").write_text(json.dumps([entry]))
        return self.run_tool("check_tidy.py")

    def test_clean(self):
        self.assert_passes(self.check_source(CLEAN))

    def test_two_variables_in_one_declaration(self):
        text = CLEAN.replace("const int y = 2 * x;", "int z = 1, y = 2 * x * z;")
        self.assert_fails(self.check_source(text), "src/shoal/base/a.cpp:2")

    def test_body_of_two_lines_without_braces(self):
        text = CLEAN.replace("return 0;", "\n    return 0 +\n        0;")
        self.assert_fails(self.check_source(text), "src/shoal/base/a.cpp:3")

    def test_source_that_does_not_compile(self):
        self.assert_fails(self.check_source(CLEAN.replace("2 * x", "2 * z")), "a.cpp")


if __name__ == "__main__":
    project.main(clang_14=["clang-tidy", "clang++"])
