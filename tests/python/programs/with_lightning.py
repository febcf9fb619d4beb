"""Trains by PyTorch Lightning, as its users write it. Prints the losses and the median time of a step, as one JSON line a rank."""
import json
import logging
import os
import tempfile

import pytorch_lightning as lightning
import torch
from step_watch import StepWatch, steps
from torch.utils.data import DataLoader, TensorDataset

logging.getLogger("pytorch_lightning").setLevel(logging.WARNING)


class Watch(lightning.Callback):
    def __init__(self):
        self.watch = StepWatch()

    def on_train_batch_start(self, *_):
        self.watch.begin()


class Flips(lightning.LightningModule):
    """Learns to turn rows round."""

    def __init__(self):
        super().__init__()
        self.layers = torch.nn.Sequential(torch.nn.Linear(256, 1024), torch.nn.GELU(), torch.nn.Linear(1024, 256))
        self.losses = []

    def training_step(self, batch, _):
        inputs, targets = batch
        loss = torch.nn.functional.mse_loss(self.layers(inputs), targets)
        self.losses.append(self.all_gather(loss.detach()).mean().item())
        return loss

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=1e-3)


lightning.seed_everything(0, verbose=False)
x = torch.randn(16 * steps(20), 256)
watch, model = Watch(), Flips()


def train():
    with tempfile.TemporaryDirectory() as folder:
        trainer = lightning.Trainer(accelerator="cpu", devices=int(os.environ.get("LOCAL_WORLD_SIZE", 2)), strategy="ddp", max_epochs=1, callbacks=[watch],
                                    logger=False, enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False,
                                    default_root_dir=folder)
        trainer.fit(model, DataLoader(TensorDataset(x, x.flip(-1)), batch_size=8))
        return trainer.world_size


size = train()
print(json.dumps({"size": size, "backend": torch.distributed.get_backend_config(), "losses": model.losses, "ms": watch.watch.ms()}))
if watch.watch.trains_again():
    train()
torch.distributed.destroy_process_group()
