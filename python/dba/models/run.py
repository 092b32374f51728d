"""Models in files: weights, and all that prediction needs besides."""

from __future__ import annotations

import dataclasses
import json
import pathlib

import safetensors
import safetensors.torch
import torch
from torch import nn

from .classifier import Classifier, DualEncoder
from .config import ModelConfig
from .encoding import Encoding
from .yaml_text import Settings, read_settings, write_settings

MODEL_FILE = "model.safetensors"


def _model_file(path: str | pathlib.Path) -> pathlib.Path:
    path = pathlib.Path(path)
    file = path if path.suffix == ".safetensors" else path / MODEL_FILE
    if not file.is_file():
        raise FileNotFoundError(f"dba.load: {file} does not exist; name the folder of a run that has finished, or a "
                                "safetensors file that dba has written")
    return file


def load(path: str | pathlib.Path, device: torch.device | str = "cpu") -> Classifier | DualEncoder:
    """The model that `dba train` left in a run's folder (or in a safetensors file), in eval mode.

    >>> model = dba.load("runs/quickstart")              # doctest: +SKIP
    >>> model.predict(["[MAX 2 9 [MIN 4 7 ] 0 ]"])       # doctest: +SKIP
    ['9']

    Its logits on the CPU in float32 are those of the program, bit for bit. `model.encoding` turns raw examples into
    tensors, `model.labels` names the classes, `model.settings` is the configuration of the run.
    """
    file = _model_file(path)
    with safetensors.safe_open(file, framework="pt") as content:
        metadata = content.metadata() or {}
    missing = [key for key in ("config", "encoding", "details") if key not in metadata]
    if missing:
        raise ValueError(f"dba.load: {file}: no {', '.join(missing)} in its metadata; it is no model that dba has "
                         "trained")
    settings = read_settings(metadata["config"], f"{file} (config)")
    details = json.loads(metadata["details"])
    encoding = Encoding.from_json(metadata["encoding"])
    encoding.mean, encoding.deviation = details["mean"], details["deviation"]
    config = _config_of(settings.get("model", {}), file)
    kind = DualEncoder if encoding.kind == "pairs" else Classifier
    inputs = {"features": encoding.channels} if encoding.kind == "series" else {"vocabulary": encoding.tokeniser.size()}
    model = kind(config, len(encoding.labels), max_length=details["longest"], **inputs)
    model.encoding, model.settings = encoding, settings
    load_weights(model, file)
    return model.to(device).eval()


def _config_of(section: Settings, file: pathlib.Path) -> ModelConfig:
    """The sizes and choices in the file, as far as this package knows them; what it does not know must be unset."""
    known = {field.name for field in dataclasses.fields(ModelConfig)}
    strange = [f"model.{key}" for key, value in section.items() if key not in known and value]
    if strange:
        raise ValueError(f"dba.load: {file}: this version of the package does not know {', '.join(strange)}; use the "
                         "package of the program that trained the model")
    return ModelConfig(**{key: value for key, value in section.items() if key in known})


def load_weights(model: nn.Module, path: str | pathlib.Path) -> None:
    """Copies the tensors of a safetensors file, written in C++ or in Python, into a module with the same names and
    shapes; RuntimeError lists all that disagrees."""
    model.load_state_dict(safetensors.torch.load_file(_model_file(path)))


def save(model: Classifier | DualEncoder, path: str | pathlib.Path) -> None:
    """See `Trained.save`."""
    settings = dict(model.settings or {})
    settings["model"] = dataclasses.asdict(model.config)
    metadata = {"config": write_settings(settings)}
    if model.encoding is not None:
        encoding = model.encoding
        metadata["encoding"] = encoding.to_json()
        metadata["details"] = json.dumps({"longest": model.max_length, "mean": encoding.mean,
                                          "deviation": encoding.deviation})
    tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in model.state_dict().items()}
    safetensors.torch.save_file(tensors, path, metadata)
