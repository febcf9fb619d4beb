"""Trains by accelerate, then by transformers' Trainer, both as their users write them. Prints losses as one JSON line a rank."""
import json
import os
import tempfile

import torch
from accelerate import Accelerator
from accelerate.utils import set_seed
from torch.utils.data import DataLoader, TensorDataset
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

os.environ["HF_HUB_OFFLINE"] = "1"
results = {}

accelerator = Accelerator(cpu=True)
set_seed(0)
x = torch.randn(128, 32)
model = torch.nn.Sequential(torch.nn.Linear(32, 64), torch.nn.GELU(), torch.nn.Linear(64, 32))
model, optimizer, loader = accelerator.prepare(model, torch.optim.AdamW(model.parameters(), lr=1e-2),
                                               DataLoader(TensorDataset(x, x.flip(-1)), batch_size=8))
results["accelerate"] = []
for inputs, targets in loader:
    loss = torch.nn.functional.mse_loss(model(inputs), targets)
    accelerator.backward(loss)
    optimizer.step()
    optimizer.zero_grad()
    results["accelerate"].append(accelerator.gather_for_metrics(loss.detach().view(1)).mean().item())

tokens = torch.arange(64 * 16).view(64, 16) % 50
data = [{"input_ids": row, "labels": row} for row in tokens]
with tempfile.TemporaryDirectory() as folder:
    set_seed(0)
    gpt = GPT2LMHeadModel(GPT2Config(vocab_size=50, n_positions=16, n_embd=32, n_layer=2, n_head=2, bos_token_id=0, eos_token_id=0))
    arguments = TrainingArguments(folder, max_steps=8, per_device_train_batch_size=4, learning_rate=1e-2, logging_steps=1, report_to=[],
                                  use_cpu=True, save_strategy="no", disable_tqdm=True)
    trainer = Trainer(gpt, arguments, train_dataset=data)
    trainer.train()
results["Trainer"] = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
print(json.dumps({"size": accelerator.num_processes, "backend": torch.distributed.get_backend_config(), **results}))
torch.distributed.destroy_process_group()
