#!/usr/bin/env python3
"""How well a classifier finds one item among many: the task in which softmax attention is the better choice.

A sequence holds `items` pairs of a key and a value, all keys different, and in front of them a question: one of the
keys. The class is the value that stands beside it. Chance is 1/8.

  python3 examples/recall.py --items 4,16,64
"""

from __future__ import annotations

import argparse
import time

import torch
from torch.nn.functional import cross_entropy, one_hot

import dba
from dba.models import Classifier, ModelConfig

KEYS, VALUES = 64, 8


def batch(size: int, items: int, random: torch.Generator) -> tuple[torch.Tensor, torch.Tensor]:
    """Steps (size, 1 + items, KEYS + VALUES), keys and values one-hot, and the value asked for (size)."""
    keys = torch.rand(size, KEYS, generator=random).argsort(1)[:, :items]
    values = torch.randint(VALUES, (size, items), generator=random)
    asked = torch.randint(items, (size, 1), generator=random)
    pairs = torch.cat((one_hot(keys, KEYS), one_hot(values, VALUES)), 2)
    question = torch.cat((one_hot(keys.gather(1, asked), KEYS), torch.zeros(size, 1, VALUES, dtype=torch.long)), 2)
    return torch.cat((question, pairs), 1).float(), values.gather(1, asked).squeeze(1)


def accuracy_of(method: str, items: int, updates: int, seed: int) -> float:
    """Trains on fresh sequences all the time and tests on 2,048 others."""
    torch.manual_seed(seed)
    random = torch.Generator().manual_seed(seed)
    config = ModelConfig(method=method, d=64, heads=4, layers=2, d_ffn=128, d_p=16, d_in=24, dropout=0.0,
                         attention_dropout=0.0, position="none", pooling="first")
    model = Classifier(config, VALUES, features=KEYS + VALUES)
    optimiser = torch.optim.AdamW(model.parameters(), lr=2e-3, betas=(0.9, 0.98))
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimiser, 2e-3, total_steps=updates)
    for _ in range(updates):
        steps, targets = batch(64, items, random)
        loss = cross_entropy(model(steps), targets)
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        schedule.step()
    model.eval()
    with torch.no_grad():
        steps, targets = batch(2048, items, random)
        return float((model(steps).argmax(1) == targets).float().mean())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--items", default="4,16,64", help="pairs in a sequence; default %(default)s")
    parser.add_argument("--methods", default="softmax,dba", help="default %(default)s")
    parser.add_argument("--updates", type=int, default=1500, help="of 64 sequences; default %(default)s")
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    print(f"dba {dba.__version__}, torch {torch.__version__}, {torch.get_num_threads()} threads")
    for items in map(int, arguments.items.split(",")):
        for method in arguments.methods.split(","):
            began = time.monotonic()
            accuracy = accuracy_of(method, items, arguments.updates, arguments.seed)
            print(f"{items:4} items  {method:8} {accuracy:6.1%}  {time.monotonic() - began:4.0f} s", flush=True)


if __name__ == "__main__":
    main()
