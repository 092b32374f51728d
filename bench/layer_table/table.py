"""What the table says: ratios, lines, and the machine behind them."""

import pathlib
import platform
import subprocess
import sys

import torch

from layer_table.columns import SDPA

ROOT = pathlib.Path(__file__).resolve().parents[2]


def add_ratios(rows: list[dict]) -> None:
    """How many times faster than the best softmax layer of the same row."""
    softmax = [row["median_ms"] for row in rows if row["method"] in SDPA and "median_ms" in row]
    for row in rows:
        if softmax and "median_ms" in row:
            row["times_faster_than_softmax"] = min(softmax) / row["median_ms"]


def print_rows(rows: list[dict], names: list[str]) -> None:
    """One line for the results at one length, one more for memory; reasons go to standard error."""
    first = rows[0]
    cells = {row["method"]: row for row in rows}

    def cell(name: str) -> str:
        row = cells.get(name)
        if row is None:
            return "–"
        if "median_ms" not in row:
            return row["status"]
        text = f"{row['median_ms']:.4g}"
        if "times_faster_than_softmax" in row and name not in SDPA:
            text += f" ({row['times_faster_than_softmax']:.2f}x)"
        return text + ("*" if row["clock"].startswith("events") else "")

    print(f"{first['form']:9} {first['length']:>9,} " + " ".join(f"{cell(name):>18}" for name in names), flush=True)
    if first["pass"] != "forward" and any(row.get("peak_bytes") for row in rows):
        peaks = [cells.get(name, {}).get("peak_bytes") for name in names]
        memory = [f"{peak / 1e6:.0f} MB" if peak else "–" for peak in peaks]
        print(f"{'':9} {'peak':>9} " + " ".join(f"{text:>18}" for text in memory), flush=True)
    for row in rows:
        if "reason" in row:
            print(f"  {row['method']} at n = {row['length']:,}: {row['status']}: {row['reason']}", file=sys.stderr)


def machine(device: str, library: pathlib.Path) -> dict[str, str | None]:
    """What the figures were measured on and with."""
    def commit() -> str:
        try:
            return subprocess.run(["git", "-C", ROOT, "describe", "--always", "--dirty"], capture_output=True,
                                  text=True, check=True).stdout.strip()
        except (OSError, subprocess.CalledProcessError):
            return "unknown"

    name = torch.cuda.get_device_name() if device == "cuda" else platform.processor() or platform.machine()
    return {"device": name, "torch": torch.__version__, "cuda": torch.version.cuda, "python": platform.python_version(),
            "commit": commit(), "library": str(library)}
