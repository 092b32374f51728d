"""Reads and writes the YAML that the program keeps in `config.yaml` and in the metadata of a model: two levels of keys,
each with a scalar or a list of scalars on its line. Nothing else of YAML is needed, so no package for it is."""

from __future__ import annotations

import json
import re
from typing import Any

Settings = dict[str, Any]


def read_settings(text: str, source: str) -> Settings:
    """{"seed": 1, "model": {"d": 128, …}, …}. ValueError, which names the source, for anything else."""
    settings: Settings = {}
    section = settings
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        key, colon, value = line.partition(":")
        if not colon:
            raise ValueError(f"{source}:{number}: expected `key: value`, got {line!r}")
        inside = key.startswith(" ")
        if not inside and not value.strip():
            section = settings.setdefault(key, {})
        else:
            (section if inside else settings)[key.strip()] = _value(value.strip(), f"{source}:{number}")
    return settings


def write_settings(settings: Settings) -> str:
    """What `read_settings` and the program read."""
    lines = []
    for key, value in settings.items():
        if isinstance(value, dict):
            lines += [f"{key}:", *(f"  {name}: {_written(item)}" for name, item in value.items())]
        else:
            lines.append(f"{key}: {_written(value)}")
    return "\n".join(lines) + "\n"


def _written(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def _value(text: str, place: str) -> Any:
    if text.startswith("["):
        if not text.endswith("]"):
            raise ValueError(f"{place}: a list must end on its line, got {text!r}")
        return [_value(item.strip(), place) for item in text[1:-1].split(",") if item.strip()]
    if text.startswith('"'):
        try:
            # The program writes control characters as \xNN, which JSON does not know.
            return json.loads(re.sub(r"\\(x(..)|.)", lambda m: f"\\u00{m[2]}" if m[2] else m[0], text))
        except json.JSONDecodeError as error:
            raise ValueError(f"{place}: bad text {text!r}: {error}") from error
    if text in ("true", "false"):
        return text == "true"
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text
