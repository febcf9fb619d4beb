"""DataLoader workers beside the arena: forked ones inherit it, spawned ones do not."""
import unittest

import torch
import torch.distributed as dist
from ranks import on_ranks
from torch.utils.data import DataLoader, Dataset

import shoal


class Squares(Dataset):
    def __init__(self):
        self.numbers = torch.arange(64.0)  # in the arena, read by the workers

    def __len__(self):
        return len(self.numbers)

    def __getitem__(self, index):
        noise = torch.ones(50_000) * index  # allocated and freed by the worker
        return self.numbers[index] ** 2 + 0 * noise.sum()


def loaders(rank, size):
    dist.all_reduce(torch.ones(1000))
    # The second pass forks from what the first one left. Spawned workers inherit nothing, and each imports Torch: once.
    for method, passes in (("fork", 2), ("spawn", 1)):
        data = Squares()
        assert shoal.in_arena(data.numbers)
        for _ in range(passes):
            got = []
            for batch in DataLoader(data, batch_size=8, num_workers=2, multiprocessing_context=method):
                dist.all_reduce(batch)  # a tensor that a worker made: foreign memory
                got.append(batch / size)
            assert torch.equal(torch.cat(got), torch.arange(64.0) ** 2)
    assert torch.equal(data.numbers, torch.arange(64.0))


class Loader(unittest.TestCase):
    def test_workers(self):
        self.assertEqual(on_ranks(2, loaders), [0, 0])


if __name__ == "__main__":
    unittest.main()
