"""An ordinary PyTorch program: DistributedDataParallel on Gloo. It knows nothing of Shoal."""
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo")
torch.manual_seed(0)
model = DistributedDataParallel(torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.GELU(), torch.nn.Linear(256, 64)))
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
generator = torch.Generator().manual_seed(dist.get_rank())
for step in range(1, 101):
    x = torch.randn(32, 64, generator=generator)
    loss = (model(x) - x.flip(-1)).square().mean()  # it learns to turn its input round
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    if step % 25 == 0:
        mean = loss.detach().clone()
        dist.all_reduce(mean)
        if dist.get_rank() == 0:
            print(f"step {step}: loss {mean.item() / dist.get_world_size():.3f}")
dist.destroy_process_group()
