"""The loop of elastic.cpp in Python: PyTorch trains, and processes join, leave and die. README.md has the commands."""
import argparse
import json
import os
import signal
import sys
import time

import torch

import shoal

SAMPLES_OF_MEMBER = 8


def make_model():
    torch.manual_seed(1)
    model = torch.nn.Sequential(torch.nn.Linear(4, 16), torch.nn.Tanh(), torch.nn.Linear(16, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)
    # A step of zeros changes no weight, and makes the optimizer's momentum, which is part of the state.
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    optimizer.step()
    return model, optimizer


def tensors_of(model, optimizer):
    """Everything that a step changes, by name."""
    tensors = {f"model.{name}": tensor for name, tensor in model.state_dict().items()}
    for index, parameter in enumerate(model.parameters()):
        tensors[f"momentum.{index}"] = optimizer.state[parameter]["momentum_buffer"]
    return tensors


def data(first, count):
    """Samples [first, first + count): the same on every machine."""
    index = torch.arange(first, first + count, dtype=torch.float32)
    inputs = torch.stack([torch.sin(index * (1.1 + i)) for i in range(4)], dim=1)
    return inputs, inputs.prod(dim=1, keepdim=True) + 0.5


def add_gradients(model, first, count):
    """Forward and backward: adds the gradients of the sum of squared errors. (that sum, samples)"""
    inputs, targets = data(first, count)
    loss = (model(inputs) - targets).square().sum()
    loss.backward()
    return torch.tensor([loss.item(), count])


def update(model, optimizer, samples):
    for parameter in model.parameters():
        parameter.grad /= samples
    optimizer.step()


def train(arguments):
    model, optimizer = make_model()
    scratch = tensors_of(model, optimizer)
    state = {name: tensor.clone() for name, tensor in scratch.items()}
    group = shoal.ElasticGroup(state, key=arguments.key, join=arguments.join, listen=arguments.listen,
                               suspect_after_s=arguments.suspect_after_s, on_fault=lambda text: print(text, file=sys.stderr))
    print(f"member {group.id} listens at {group.endpoint}, and begins with step {group.next_step}", file=sys.stderr)
    if arguments.address_file:
        with open(arguments.address_file + ".new", "w") as file:
            print(group.endpoint, file=file)
        os.rename(arguments.address_file + ".new", arguments.address_file)
    group.wait_for_members(arguments.members)

    def attempt(view):
        # Another attempt may have left its marks on the model: it begins with the state.
        for name, tensor in scratch.items():
            tensor.copy_(state[name])
        # G, zero gradients. A member that dies here, or joins, costs nothing: the step has not begun.
        optimizer.zero_grad(set_to_none=False)
        # F, forward and backward. The next attempt divides the samples of one that dies here among those that are left.
        first = view.samples + view.rank * SAMPLES_OF_MEMBER
        loss_and_samples = add_gradients(model, first, SAMPLES_OF_MEMBER)
        time.sleep(arguments.pause_ms / 1000)
        # R, reduce. Where a member dies the others' collectives raise: nothing is decided, and they attempt the step again.
        view.all_reduce(loss_and_samples)
        if arguments.die_at == view.step:
            os.kill(os.getpid(), signal.SIGKILL)
        for parameter in model.parameters():
            view.all_reduce(parameter.grad)
        # O, optimize, in the scratch. It becomes the state when all have come here and that is decided.
        update(model, optimizer, loss_and_samples[1])
        return scratch, SAMPLES_OF_MEMBER

    asked_to_leave = []
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: asked_to_leave.append(True))
    while group.next_step < arguments.steps and not asked_to_leave:
        step = group.step(attempt)
        if arguments.lineage:
            with open(arguments.lineage, "a") as file:
                print(json.dumps({"step": step.step, "members": step.members, "first_sample": step.first_sample, "samples": step.samples, "state": step.state}), file=file)
    group.leave()
    if arguments.save:
        torch.save(state, arguments.save)
    print(f"left before step {group.next_step}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--join", metavar="HOST:PORT", action="append", default=[], help="a member to join; without it the process begins a group")
    parser.add_argument("--key", default="not a secret", help="the secret that all members share")
    parser.add_argument("--listen", default="127.0.0.1", help="where the others find this member")
    parser.add_argument("--members", type=int, default=1, help="waits for so many before the first step")
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--pause-ms", type=float, default=0, help="makes each step last longer, for those who watch")
    parser.add_argument("--die-at", type=int, metavar="STEP", help="kills this process in the middle of that step's reduce")
    parser.add_argument("--suspect-after-s", type=float, default=2.0, help="how long a member is silent before it is taken for dead")
    parser.add_argument("--address-file", metavar="FILE", help="gets this member's address")
    parser.add_argument("--lineage", metavar="FILE", help="gets a line for each committed step")
    parser.add_argument("--save", metavar="FILE", help="gets the state at the end")
    train(parser.parse_args())
