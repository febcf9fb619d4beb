"""Trains by accelerate, as its users write it. Prints the losses and the median time of a step, as one JSON line a rank."""
import json

import torch
from accelerate import Accelerator
from accelerate.utils import set_seed
from step_watch import StepWatch, steps
from torch.utils.data import DataLoader, TensorDataset

accelerator = Accelerator(cpu=True)
set_seed(0)
x = torch.randn(16 * steps(20), 256)
model = torch.nn.Sequential(torch.nn.Linear(256, 1024), torch.nn.GELU(), torch.nn.Linear(1024, 256))
model, optimizer, loader = accelerator.prepare(model, torch.optim.AdamW(model.parameters(), lr=1e-3),
                                               DataLoader(TensorDataset(x, x.flip(-1)), batch_size=8))
losses, watch = [], StepWatch()


def train():
    for inputs, targets in loader:
        watch.begin()
        loss = torch.nn.functional.mse_loss(model(inputs), targets)
        accelerator.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(accelerator.gather_for_metrics(loss.detach().view(1)).mean().item())


train()
print(json.dumps({"size": accelerator.num_processes, "backend": torch.distributed.get_backend_config(), "losses": losses, "ms": watch.ms()}))
if watch.trains_again():
    train()
torch.distributed.destroy_process_group()
