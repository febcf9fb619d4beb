"""Trains by the Trainer of transformers, as its users write it. Prints the losses and the median time of a step, as one JSON line a rank."""
import json
import os
import tempfile

os.environ["HF_HUB_OFFLINE"] = "1"

import torch
from step_watch import StepWatch, steps
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainerCallback, TrainingArguments, set_seed

watch = StepWatch()


class Watch(TrainerCallback):
    def on_step_begin(self, *_, **__):
        watch.begin()


tokens = torch.arange(64 * 16).view(64, 16) % 50
data = [{"input_ids": row, "labels": row} for row in tokens]
with tempfile.TemporaryDirectory() as folder:
    set_seed(0)
    gpt = GPT2LMHeadModel(GPT2Config(vocab_size=50, n_positions=16, n_embd=128, n_layer=2, n_head=2, bos_token_id=0, eos_token_id=0))
    arguments = TrainingArguments(folder, max_steps=steps(12), per_device_train_batch_size=4, learning_rate=3e-3, logging_steps=1, report_to=[],
                                  use_cpu=True, save_strategy="no", disable_tqdm=True)
    trainer = Trainer(gpt, arguments, train_dataset=data, callbacks=[Watch()])
    trainer.train()
    losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
    print(json.dumps({"size": arguments.world_size, "backend": torch.distributed.get_backend_config(), "losses": losses, "ms": watch.ms()}))
    if watch.trains_again():
        trainer.train()
torch.distributed.destroy_process_group()
