"""tools/check_layers.py finds each kind of planted violation, and nothing in a clean project."""
import re
import unittest

import project


class LayersTest(project.ProjectTest):
    def setUp(self):
        super().setUp()
        self.copy("CMakeLists.txt", "docs/architecture.md")
        self.room("base")
        self.room("wire", "base")
        self.room("collective", "base", "wire")
        self.room("schedule", "base")
        self.room("comm", "collective", torch=True)
        self.room("mesh", "base", torch=True)
        self.room("train/config", "collective")
        self.room("train", "train/config", "comm", torch=True)

    def check(self):
        return self.run_tool("check_layers.py")

    def test_clean(self):
        self.write("src/shoal/wire/a.cpp", '#include "shoal/wire/thing.h"\n#include "shoal/base/thing.h"\n#include <vector>\n')
        self.write("src/shoal/train/a.cpp", '#include "shoal/train/config/thing.h"\n#include "shoal/wire/thing.h"\n')
        self.write("apps/shoal/train.cpp", '#include "shoal/train/thing.h"\n')
        self.assert_passes(self.check())

    def test_include_upward(self):
        self.write("src/shoal/base/a.h", '#pragma once\n#include "shoal/wire/thing.h"\n')
        self.assert_fails(self.check(), "src/shoal/base/a.h:2", "base (floor 0, no Torch) may not include wire (floor 1")

    def test_include_on_the_same_floor(self):
        self.write("src/shoal/schedule/a.cpp", '#include "shoal/collective/thing.h"\n')
        self.assert_fails(self.check(), "src/shoal/schedule/a.cpp:1", "may not include collective")

    def test_inner_room_does_not_use_the_outer(self):
        self.write("src/shoal/train/config/a.cpp", '#include "shoal/train/thing.h"\n')
        self.assert_fails(self.check(), "train/config/a.cpp:1", "may not include train")

    def test_room_without_torch_uses_none_with_it(self):
        self.write("src/shoal/train/config/a.cpp", '#  include <shoal/mesh/thing.h>\n')
        self.assert_fails(self.check(), "train/config (floor 7, no Torch) may not include mesh")

    def test_include_without_link(self):
        self.write("src/shoal/comm/a.cpp", '#include "shoal/schedule/thing.h"\n')
        self.assert_fails(self.check(), "src/shoal/comm/a.cpp:1", "includes schedule", "does not reach")

    def test_include_of_unknown_room(self):
        self.write("src/shoal/wire/a.cpp", '#include "shoal/misc/thing.h"\n')
        self.assert_fails(self.check(), "src/shoal/wire/a.cpp:1", "in no room")

    def test_include_of_an_application(self):
        self.write("src/shoal/comm/a.cpp", '#include "apps/shoal/train.h"\n')
        self.assert_fails(self.check(), "src/shoal/comm/a.cpp:1", "may not include apps/shoal")

    def test_unknown_folder(self):
        self.write("src/shoal/misc/thing.h", "#pragma once\n")
        self.assert_fails(self.check(), "src/shoal/misc", "no room")

    def test_link_upward(self):
        self.room("wire", "base", "comm")
        self.assert_fails(self.check(), "src/shoal/wire/CMakeLists.txt", "may not link comm")

    def test_link_beside_the_list(self):
        path = self.root / "src/shoal/wire/CMakeLists.txt"
        path.write_text(path.read_text() + "target_link_libraries(shoal_wire PUBLIC shoal_schedule)\n")
        self.assert_fails(self.check(), "src/shoal/wire/CMakeLists.txt", "beside LINKS")

    def test_torch_below_its_floor(self):
        self.room("collective", "base", "wire", torch=True)
        self.assert_fails(self.check(), "src/shoal/collective/CMakeLists.txt", "TORCH")

    def test_library_of_another_name(self):
        self.write("src/shoal/wire/CMakeLists.txt", "shoal_library(wires LINKS base)\n")
        self.assert_fails(self.check(), "src/shoal/wire/CMakeLists.txt", "'wires'")

    def test_test_without_its_namespace(self):
        self.write("tests/wire/a_test.cpp", "namespace shoal::wire::a_test {\n")
        self.assert_passes(self.check())
        self.write("tests/wire/b_test.cpp", "namespace shoal::wire {\n")
        self.assert_fails(self.check(), "tests/wire/b_test.cpp", "shoal::<room>::b_test")
        self.write("tests/wire/b_test.cpp", "namespace shoal::wire::b_test {\n}\nnamespace shoal::wire {\n")
        self.assert_fails(self.check(), "tests/wire/b_test.cpp", "shoal::<room>::b_test")

    def test_page_disagrees(self):
        page = (self.root / "docs/architecture.md").read_text()
        self.write("docs/architecture.md", page.replace("| 1 | `wire/`", "| 2 | `wire/`"))
        self.assert_fails(self.check(), "docs/architecture.md", "wire is on floor 2")
        self.write("docs/architecture.md", re.sub(r"(`nn/`.*\| )yes", r"\1no", page))
        self.assert_fails(self.check(), "docs/architecture.md", "nn", "Torch: no")
        self.write("docs/architecture.md", re.sub(r"\n.*`optim/`.*", "", page, count=1))
        self.assert_fails(self.check(), "docs/architecture.md", "optim", "missing")

    def test_room_lists_disagree(self):
        lists = (self.root / "CMakeLists.txt").read_text()
        self.write("CMakeLists.txt", lists.replace("foreach(room base wire", "foreach(room wire base"))
        self.assert_fails(self.check(), "CMakeLists.txt", "floor order")
        self.write("CMakeLists.txt", lists.replace("foreach(room base wire", "foreach(room base comm wire"))
        self.assert_fails(self.check(), "CMakeLists.txt", "without Torch")


if __name__ == "__main__":
    unittest.main()
