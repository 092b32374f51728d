"""Labelled time series from files, for pictures: `.ts` of the UEA archive, JSON lines and long CSV. The rules are those
of `dba train`, whose readers check more."""

from __future__ import annotations

import csv
import json
import os
import pathlib
import re
from collections.abc import Iterator
from typing import Any, Union

import numpy

Path = Union[str, "os.PathLike[str]"]
Labelled = tuple[list[numpy.ndarray], list[str]]
_BY_ENDING = {".ts": "ts", ".jsonl": "jsonl", ".ndjson": "jsonl"}


def series_format(path: Path, data: dict[str, Any] | None = None) -> str:
    """"ts", "jsonl" or "csv_long"; empty where the file is none of them. data: the section of the run's settings."""
    file, told = pathlib.Path(path), (data or {}).get("format", "")
    if found := _BY_ENDING.get(file.suffix.lower()):
        return found
    if file.suffix.lower() == ".csv" and told != "csv_long":
        with file.open(encoding="utf-8-sig", errors="replace", newline="") as opened:
            names = [name.strip() for name in next(csv.reader(opened), [])]
        return "csv_long" if {"case", "time"} <= set(names) and "text" not in names else ""
    return told if told in ("ts", "jsonl", "csv_long") else ""


def read_series(path: Path, data: dict[str, Any] | None = None) -> Labelled:
    """Series (time, channels) float32 with NaN for a missing value, and their labels, "" for none.

    path: as the configuration of a run has it, so that a part such as `FILE@80-90%` may follow.
    data: the section of the run's settings, which names columns and format.
    """
    whole, begin, end, percent = _part(os.fspath(path))
    if not pathlib.Path(whole).is_file():
        raise FileNotFoundError(f"{whole} does not exist, or is no file; say with --input where it lies here")
    columns = {name: (data or {}).get(f"{name}_column") or name for name in ("case", "time", "label")}
    format = series_format(whole, data)
    if format == "ts":
        series, labels = read_ts(whole)
    elif format == "jsonl":
        series, labels = _gathered(whole, _json_lines(pathlib.Path(whole), columns["label"]))
    elif format == "csv_long":
        series, labels = _gathered(whole, _long_table(pathlib.Path(whole), **columns))
    else:
        raise ValueError(f"{whole}: time series are read from .ts files, JSON lines (.jsonl) and long CSV (.csv with "
                         "columns case and time); give one of these with --input")
    if end is None:
        return series, labels
    places = slice(*(len(series) * place // 100 if percent else place for place in (begin, end)))
    return series[places], labels[places]


def read_ts(path: Path) -> Labelled:
    """The series of a `.ts` file of the UEA archive, each (time, channels) float32 with NaN for a missing value, and
    their labels, "" for none."""
    return _gathered(path, _ts_rows(pathlib.Path(path)))


def _part(path: str) -> tuple[str, int, int | None, bool]:
    found = None if os.path.exists(path) else re.fullmatch(r"(.*)@(\d+)-(\d+)(%?)", path)
    return (found[1], int(found[2]), int(found[3]), found[4] == "%") if found else (path, 0, None, False)


def _gathered(path: Path, rows: Iterator[tuple[int, Any, str]]) -> Labelled:
    """rows: line, values (time, channels), label."""
    series: list[numpy.ndarray] = []
    labels: list[str] = []
    for number, values, label in rows:
        try:
            one = numpy.asarray(values, dtype=numpy.float32)
        except (TypeError, ValueError) as reason:
            raise _fault(path, number, f"no series of numbers ({reason})") from reason
        one = one[:, numpy.newaxis] if one.ndim == 1 else one
        if one.ndim != 2 or one.size == 0:
            raise _fault(path, number, f"a series must stand as (time, channels), got shape {one.shape}")
        if series and one.shape[1] != series[0].shape[1]:
            raise _fault(path, number, f"the series has {one.shape[1]} channels, those before it {series[0].shape[1]}")
        series.append(one)
        labels.append(label)
    if not series:
        raise ValueError(f"{os.fspath(path)}: holds no series; `dba data check {os.fspath(path)}` says what it holds")
    return series, labels


def _fault(path: Path, number: int, reason: str) -> ValueError:
    return ValueError(f"{os.fspath(path)}:{number}: {reason}; `dba data check {os.fspath(path)}` says what is wrong")


def _ts_rows(file: pathlib.Path) -> Iterator[tuple[int, Any, str]]:
    labelled, data, dimensions = False, False, 0
    classes: dict[str, str] = {}  # lower case → as the header has it
    for number, line in enumerate(file.read_text(encoding="utf-8-sig", errors="replace").splitlines(), start=1):
        line = line.strip()
        if not line or line.startswith(("#", "%")):
            continue
        if not data:
            tag, *words = line.split()
            if tag.lower() == "@classlabel":
                labelled = words[:1] != [] and words[0].lower() == "true"
                classes = {word.lower(): word for word in reversed(words[1:])}
                classes.update((word, word) for word in words[1:])
            elif tag.lower() in ("@dimensions", "@dimension") and words and words[0].isdigit():
                dimensions = int(words[0])
            elif tag.lower() == "@univariate" and words and words[0].lower() == "true":
                dimensions = 1
            data = tag.lower() == "@data"
            continue
        channels, label = line.split(":"), ""
        # A row without a label, as those to be classified are, has all its dimensions without the last field.
        if labelled and len(channels) > 1 and (len(channels) != dimensions or _is_class(channels, classes)):
            label = channels.pop().strip()
            label = "" if label == "?" else label
            if label and classes and label not in classes and label.lower() not in classes:
                raise _fault(file, number, f"the label {label!r} is none of the {len(set(classes.values()))} classes "
                                           "of the header")
            label = classes.get(label, classes.get(label.lower(), label))
        dimensions = dimensions or len(channels)
        try:
            values = [[_number(value) for value in channel.split(",")] for channel in channels]
        except ValueError as reason:
            raise _fault(file, number, f"not a series of the UEA archive ({reason})") from reason
        if len(set(map(len, values))) > 1:
            raise _fault(file, number, "the dimensions of a case must have one length, got "
                                       f"{sorted(set(map(len, values)))}")
        yield number, numpy.asarray(values, dtype=numpy.float32).T, label


def _is_class(channels: list[str], classes: dict[str, str]) -> bool:
    """Whether the last field is a class where it could be the last dimension: series of one step look like labels."""
    last = channels[-1].strip()
    return "," in channels[0] and (last in classes or last.lower() in classes)


def _number(text: str, missing: tuple[str, ...] = ("?",)) -> float:
    text = text.strip()
    return float("nan") if text in missing else float(text)


def _json_lines(file: pathlib.Path, label_column: str) -> Iterator[tuple[int, Any, str]]:
    for number, line in enumerate(file.read_text(encoding="utf-8-sig", errors="replace").splitlines(), start=1):
        if not line.strip():
            continue
        try:
            record = json.loads(line)
            values, label = record["series"], record.get(label_column)
        except (ValueError, KeyError, TypeError, AttributeError) as reason:
            raise _fault(file, number, f"must be a JSON object with series, got {line[:60]!r}") from reason
        if isinstance(label, bool):
            label = str(label).lower()
        elif isinstance(label, float):
            label = json.loads(line, parse_float=str)[label_column]  # as it is written
        yield number, values, "" if label is None else str(label)


def _long_table(file: pathlib.Path, case: str, time: str, label: str) -> Iterator[tuple[int, Any, str]]:
    with file.open(encoding="utf-8-sig", errors="replace", newline="") as opened:
        rows = csv.reader(opened)
        names = [name.strip() for name in next(rows, [])]
        if case not in names or time not in names:
            raise _fault(file, 1, f"the header must name the columns {case!r} and {time!r}, got {names}")
        case_at, label_at = names.index(case), names.index(label) if label in names else None
        channels = [place for place, name in enumerate(names) if name not in (case, time, label)]
        values: list[list[float]] = []
        before: list[str] = []
        begun = 2
        for row in rows:
            if not row:
                continue
            if len(row) != len(names):
                raise _fault(file, rows.line_num, f"the row has {len(row)} fields, the header {len(names)}")
            if before and row[case_at] != before[case_at]:
                yield begun, values, before[label_at] if label_at is not None else ""
                values, begun = [], rows.line_num
            try:
                values.append([_number(row[place], ("", "?", "NA")) for place in channels])
            except ValueError as reason:
                raise _fault(file, rows.line_num, f"no row of numbers ({reason})") from reason
            before = row
        if before:
            yield begun, values, before[label_at] if label_at is not None else ""
