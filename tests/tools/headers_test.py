"""tools/check_headers.py finds each kind of planted violation. Torch is played by a folder with a few headers, so no Torch is needed."""
import unittest

import project


class HeadersTest(project.ProjectTest):
    def setUp(self):
        super().setUp()
        for path, text in {
            "ATen/core/Tensor.h": "#include <c10/core/Device.h>\n",
            "c10/core/Device.h": "",
            "ATen/ATen.h": "",
            "ATen/ops/mm.h": "#include <ATen/core/Tensor.h>\n",
            "torch/csrc/autograd/custom_function.h": "",
            "torch/csrc/distributed/c10d/Backend.hpp": "",
            "torch/csrc/api/include/torch/torch.h": "",
            "torch/csrc/api/include/torch/nn.h": "",
        }.items():
            self.write("torch-install/include/" + path, "#pragma once\n" + text)
        self.room("base")
        self.room("ops", "base", torch=True)

    def check(self):
        return self.run_tool("check_headers.py", "--torch", str(self.root / "torch-install"))

    def test_clean(self):
        self.write("src/shoal/ops/matrix.h", '#pragma once\n#include <ATen/core/Tensor.h>\n#include "shoal/base/thing.h"\n')
        self.write("src/shoal/ops/matrix.cpp", '#include "shoal/ops/matrix.h"\n#include <ATen/ops/mm.h>\n#include "shoal/ops/autograd_compat.h"\n')
        self.write("src/shoal/ops/autograd_compat.h", "#pragma once\n#include <torch/csrc/autograd/custom_function.h>\n")
        self.assert_passes(self.check())
        self.assert_passes(self.check())  # from memory

    def test_public_header_beyond_the_tensor(self):
        self.write("src/shoal/ops/matrix.h", "#pragma once\n#include <ATen/core/Tensor.h>\n#include <ATen/ops/mm.h>\n")
        self.assert_fails(self.check(), "src/shoal/ops/matrix.h", "line 3: ATen/ops/mm.h")

    def test_public_header_beyond_the_tensor_through_another(self):
        outer = self.write("src/shoal/ops/outer.h", '#pragma once\n#include "shoal/ops/inner.h"\n')
        inner = self.write("src/shoal/ops/inner.h", "#pragma once\n#include <ATen/core/Tensor.h>\n")
        self.assert_passes(self.check())
        inner.write_text("#pragma once\n#include <ATen/ops/mm.h>\n")  # outer.h has not changed: what is remembered of it no longer holds
        self.assert_fails(self.check(), str(outer.relative_to(self.root)), "ATen/ops/mm.h")

    def test_torch_in_a_room_without_it(self):
        self.write("src/shoal/base/tensor.h", "#pragma once\n#include <c10/core/Device.h>\n")
        self.write("src/shoal/base/tensor.cpp", "#include <ATen/core/Tensor.h>\n")
        run = self.check()
        self.assert_fails(run, "src/shoal/base/tensor.h: reaches 1 header", "base stands without Torch")
        self.assert_fails(run, "src/shoal/base/tensor.cpp:1", "base stands without Torch")

    def test_forbidden_headers(self):
        for header in ("torch/torch.h", "torch/nn.h", "torch/nn/modules/linear.h", "ATen/ATen.h", "torch/csrc/api/include/torch/nn.h"):
            self.write("tests/ops/matrix_test.cpp", f"\n#include <{header}>\n")
            self.assert_fails(self.check(), "tests/ops/matrix_test.cpp:2", header)

    def test_internals_in_a_header(self):
        self.write("src/shoal/ops/autograd.h", "#pragma once\n#include <torch/csrc/autograd/custom_function.h>\n")
        self.assert_fails(self.check(), "src/shoal/ops/autograd.h:2", "compat header")

    def test_internals_in_two_files(self):
        for name in "ab":
            self.write(f"src/shoal/ops/{name}.cpp", "#include <torch/csrc/distributed/c10d/Backend.hpp>\n")
        self.assert_fails(self.check(), "a.cpp:1", "b.cpp:1", "ops adapts to c10d in 2 files")

    def test_compat_header_in_a_header(self):
        self.write("src/shoal/ops/autograd_compat.h", "#pragma once\n#include <torch/csrc/autograd/custom_function.h>\n")
        self.write("src/shoal/ops/matrix.h", '#pragma once\n#include "shoal/ops/autograd_compat.h"\n')
        self.assert_fails(self.check(), "src/shoal/ops/matrix.h:2", "a header includes")

    def test_header_that_does_not_compile(self):
        self.write("src/shoal/base/broken.h", '#pragma once\n#include "shoal/base/gone.h"\n')
        self.assert_fails(self.check(), "src/shoal/base/broken.h", "does not stand by itself")


if __name__ == "__main__":
    unittest.main()
