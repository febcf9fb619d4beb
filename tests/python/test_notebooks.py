"""Ranks that live as long as a notebook: the kernels of jupyter-distributed. docs/pytorch.md has ipyparallel, and its commands are run by another test."""
import asyncio
import unittest
import unittest.mock

from jupyter_distributed.kernel_group import DistributedKernelGroup
from launched import variables

RANKS = 2


class NotebookTest(unittest.IsolatedAsyncioTestCase):
    async def asyncSetUp(self):
        # Its kernels inherit the environment of this process.
        for name, value in variables().items():
            self.enterContext(unittest.mock.patch.dict("os.environ", {name: value}))
        self.group = DistributedKernelGroup(world_size=RANKS)
        await asyncio.wait_for(self.group.start(), 120)
        self.addAsyncCleanup(self.group.shutdown, now=True)

    async def cell(self, code):
        """[(status, what was printed)] of all ranks."""
        done = await asyncio.wait_for(self.group.execute(code), 120)
        return [(rank.status, "".join(output.plain_text() for output in rank.outputs)) for rank in done.ranks]

    async def runs(self, code):
        found = await self.cell(code)
        self.assertEqual([status for status, _ in found], ["ok"] * RANKS, found)
        return [printed.strip() for _, printed in found]

    async def test_cells_of_all_ranks(self):
        await self.runs("import shoal, torch, torch.distributed as dist\ndist.init_process_group('shoal')\nx = torch.full((3,), dist.get_rank() + 1.0)")
        self.assertEqual(await self.runs("dist.all_reduce(x)\nprint(x.tolist(), dist.get_backend())"), ["[3.0, 3.0, 3.0] shoal"] * RANKS)
        # An exception ends a cell and no rank.
        first, second = await self.cell("if dist.get_rank() == 1: raise ValueError('no data')")
        self.assertEqual((first[0], second[0]), ("ok", "error"))
        self.assertIn("ValueError: no data", second[1])
        await self.runs("model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 1))\nmodel(torch.ones(2, 4) * dist.get_rank()).sum().backward()")
        gradients = await self.runs("print(model.module.weight.grad.tolist())")
        self.assertEqual(gradients, ["[[1.0, 1.0, 1.0, 1.0]]"] * RANKS)  # the mean of 0 and 2
        await self.runs("dist.destroy_process_group()")


if __name__ == "__main__":
    unittest.main()
