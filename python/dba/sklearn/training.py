"""The training loop of DBAClassifier: packed batches, early stopping, the best weights at the end."""

from __future__ import annotations

import copy
import dataclasses
import math

import numpy
import torch
from torch import nn

from ..sequences import Sequences
from .progress import Progress
from .series import Series


@dataclasses.dataclass
class Settings:
    """What the loop takes from the estimator's parameters."""

    epochs: int
    patience: int
    batch_size: int
    learning_rate: float
    weight_decay: float
    verbose: int


@dataclasses.dataclass
class Result:
    """How a fit went."""

    history: list[dict[str, float]]
    """One dictionary per epoch: epoch, loss and, where a part is held out, validation_loss, validation_accuracy."""
    best_epoch: int
    """The epoch whose weights the model has now."""


def pack(series: Series, device: torch.device) -> tuple[torch.Tensor, Sequences]:
    """Rows (N, channels), one series behind the other, and where each lies."""
    lengths = [len(one) for one in series]
    bounds = torch.tensor([0, *numpy.cumsum(lengths).tolist()], device=device)
    rows = torch.from_numpy(numpy.concatenate(series)).to(device)
    return rows, Sequences(bounds[:-1], bounds[1:], rows.shape[0], max_length=max(lengths))


def hold_out(labels: numpy.ndarray, fraction: float, random: numpy.random.RandomState) -> tuple[numpy.ndarray, ...]:
    """Indices of the part to train on and of the held-out part, in which every class has its share; a class of a single
    case stays in training."""
    held: list[int] = []
    for label in numpy.unique(labels):
        members = random.permutation(numpy.flatnonzero(labels == label))
        count = min(max(round(fraction * len(members)), 1), len(members) - 1)
        held.extend(members[:count])
    mask = numpy.zeros(len(labels), dtype=bool)
    mask[held] = True
    return numpy.flatnonzero(~mask), numpy.flatnonzero(mask)


def logits_of(model: nn.Module, series: Series, batch_size: int, device: torch.device) -> torch.Tensor:
    """(cases, classes) in float64 on the CPU, in the order of the series."""
    order = sorted(range(len(series)), key=lambda index: len(series[index]))
    result: torch.Tensor | None = None
    was_training = model.training
    model.eval()
    try:
        with torch.inference_mode():
            for begin in range(0, len(order), batch_size):
                chosen = order[begin : begin + batch_size]
                logits = model(*pack([series[index] for index in chosen], device)).double().cpu()
                if result is None:
                    result = logits.new_empty(len(series), logits.shape[1])
                result[chosen] = logits
    finally:
        model.train(was_training)
    assert result is not None
    return result


def train(model: nn.Module, series: Series, labels: numpy.ndarray, held_series: Series, held_labels: numpy.ndarray,
          settings: Settings, random: numpy.random.RandomState, device: torch.device) -> Result:
    """Trains in place. Without a held-out part it runs all epochs and keeps the last weights."""
    targets = torch.from_numpy(labels).to(device)
    held_targets = torch.from_numpy(held_labels)
    updates = math.ceil(len(series) / settings.batch_size)
    optimiser = torch.optim.AdamW(model.parameters(), lr=settings.learning_rate, weight_decay=settings.weight_decay,
                                  betas=(0.9, 0.98))
    warm_up, total = min(5, settings.epochs) * updates, settings.epochs * updates
    schedule = torch.optim.lr_scheduler.LambdaLR(optimiser, lambda update: rate(update, warm_up, total))
    history: list[dict[str, float]] = []
    best, best_epoch, best_weights = math.inf, settings.epochs, None
    progress = Progress(settings.epochs, settings.verbose)
    for epoch in range(1, settings.epochs + 1):
        model.train()
        loss_sum = 0.0
        order = random.permutation(len(series))
        for begin in range(0, len(order), settings.batch_size):
            chosen = order[begin : begin + settings.batch_size]
            logits = model(*pack([series[index] for index in chosen], device))
            loss = nn.functional.cross_entropy(logits, targets[chosen])
            optimiser.zero_grad(set_to_none=True)
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 4.0)
            optimiser.step()
            schedule.step()
            loss_sum += float(loss.detach()) * len(chosen)
        entry = {"epoch": epoch, "loss": loss_sum / len(series)}
        if not math.isfinite(entry["loss"]):
            raise RuntimeError(f"DBAClassifier.fit: the loss became {entry['loss']} in epoch {epoch}; lower "
                               f"learning_rate (it is {settings.learning_rate}), or look for extreme values in X")
        words = f"loss {entry['loss']:.3f}"
        if len(held_series) > 0:
            held = logits_of(model, held_series, settings.batch_size, device)
            entry["validation_loss"] = float(nn.functional.cross_entropy(held, held_targets))
            entry["validation_accuracy"] = float((held.argmax(1) == held_targets).double().mean())
            words += f", held out {entry['validation_loss']:.3f} ({entry['validation_accuracy']:.1%})"
            if entry["validation_loss"] < best:
                best, best_epoch = entry["validation_loss"], epoch
                best_weights = copy.deepcopy(model.state_dict())
        history.append(entry)
        progress.epoch(epoch, words)
        if best_weights is not None and epoch - best_epoch >= settings.patience:
            break
    if best_weights is not None:
        model.load_state_dict(best_weights)
    model.eval()
    best_epoch = best_epoch if best_weights is not None else len(history)
    progress.close(f"trained {len(history)} epochs; the weights are those of epoch {best_epoch}")
    return Result(history, best_epoch)


def rate(update: int, warm_up: int, total: int) -> float:
    """The learning rate's factor: it climbs along a line, then falls along half a cosine."""
    if update < warm_up:
        return (update + 1) / warm_up
    return 0.5 * (1 + math.cos(math.pi * (update - warm_up) / max(1, total - warm_up)))
