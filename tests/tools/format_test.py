"""tools/check_format.sh finds a line that is not in the project's format."""
import subprocess

import project


class FormatTest(project.ProjectTest):
    def check(self, *arguments):
        return subprocess.run([project.ROOT / "tools" / "check_format.sh", *arguments, self.root], capture_output=True, text=True)

    def setUp(self):
        super().setUp()
        self.copy(".clang-format")

    def test_planted(self):
        good = self.write("a.cpp", "int main() { return 0; }\n")
        self.assertEqual(self.check().returncode, 0)
        good.write_text("int main(){return 0;}\n")
        run = self.check()
        self.assertNotEqual(run.returncode, 0)
        self.assertIn("make format", run.stderr)
        self.assertEqual(self.check("--fix").returncode, 0)
        self.assertEqual(good.read_text(), "int main() { return 0; }\n")


if __name__ == "__main__":
    project.main(clang_14=["clang-format"])
