"""`dba plan` as a person uses it."""

import json
import os
import pathlib
import subprocess

import pytest
import torch

ROOT = pathlib.Path(__file__).resolve().parents[2]
DBA = pathlib.Path(os.environ.get("DBA_PROGRAM", ROOT / "build" / "release" / "bin" / "dba"))
TINY = ["--n", 24, "--batch", 2, "--d", 16, "--heads", 2, "--d-p", 4, "--d-in", 8, "--threads", 1]


def plan(*arguments, check=True, file="/nonexistent/plan.json", **environment):
    result = subprocess.run([str(DBA), "plan", *map(str, arguments)], capture_output=True, text=True, timeout=240,
                            env={**os.environ, "OMP_WAIT_POLICY": "passive", "DBA_PLAN_FILE": str(file), **environment})
    if check:
        assert result.returncode == 0, result.stdout + result.stderr
    return result


def test_text_and_json_say_the_same(tmp_path):
    file = tmp_path / "plan.json"
    text = plan("--n", 4096, "--d", 256, "--json", file).stdout
    report = json.loads(file.read_text())
    assert [one["candidate"] for one in report["candidates"]] == ["fused", "projected", "reference", "direct"]
    assert all(one["obstacle"] is None and one["predicted_ms"] > 0 and one["operations"] > 0 and one["bytes"] > 0
               and one["peak_bytes"] > 0 for one in report["candidates"])
    assert report["choice"] == "fused" and report["choice"] in report["reason"] and report["reason"] in text
    assert report["constants"]["calibrated"] is False and report["crossover_length"] > 0
    assert f"from n = {report['crossover_length']} on" in text
    for word in ("candidate", "predicted ms", "GFLOP", "MB moved", "peak MB", "projected", "defaults", "softmax"):
        assert word in text


def test_measured_candidates_agree():
    for form in ("paper", "released"):
        report = json.loads(plan(*TINY, "--form", form, "--pass", "training", "--dtype", "float64", "--measure",
                                 "--seconds", "0.01", "--json").stdout)
        for one in report["candidates"]:
            measured = one["measured"]
            assert measured["failure"] is None and measured["ms"] > 0 and measured["peak_bytes"] > 0
            assert measured["difference"] < 1e-12
        assert report["softmax"]["measured"]["ms"] > 0
    text = plan(*TINY, "--measure", "--seconds", "0.01").stdout
    assert "measured ms" in text and "fastest" in text


def test_obstacles_are_told():
    text = plan(*TINY, "--pass", "training", "--dropout", "0.1").stdout
    assert "projected is out of the question: with dropout" in text
    text = plan(*TINY, DBA_BACKEND="reference").stdout
    assert "no fused kernel: the backend is set to reference" in text
    assert "autocast" in plan(*TINY, "--dtype", "autocast").stdout


def test_packed_lengths_are_planned_not_measured():
    report = json.loads(plan("--lengths", "5,0,70", "--json").stdout)
    assert report["shape"]["tokens"] == 75 and report["shape"]["batch"] == 3 and report["shape"]["longest"] == 70
    refused = plan("--lengths", "5,70", "--measure", check=False)
    assert refused.returncode == 2 and "--measure" in refused.stderr and "--n" in refused.stderr


def test_wrong_usage_names_argument_and_remedy():
    for wrong, words in ((["--d", 16], ["--n", "4096"]), (["--n", 0], ["--n"]), (["--n", "many"], ["--n", "many"]),
                         (["--n", 8, "--heads", 3], ["--heads", "3", "256"]),
                         (["--n", 8, "--dtype", "float8"], ["--dtype", "float8", "bfloat16"]),
                         (["--n", 8, "--device", "abacus"], ["--device", "abacus", "cuda"]),
                         (["--n", 8, "--form", "released", "--normalise", "linear"], ["--normalise", "released"]),
                         (["--n", 8, "--lengths", 8], ["--n", "--lengths"]),
                         (["--n", 8, "--calibrate"], ["--calibrate", "--n"]),
                         (["--grid", "--dtype", "autocast"], ["--dtype", "autocast"])):
        result = plan(*wrong, check=False)
        assert result.returncode == 2, wrong
        assert all(str(word) in result.stderr for word in words), result.stderr


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without a GPU")
def test_missing_gpu_is_told():
    result = plan("--n", 8, "--device", "cuda", check=False)
    assert result.returncode == 1 and "no CUDA GPU" in result.stderr


def test_broken_constants_are_refused_and_other_ones_are_used(tmp_path):
    file = tmp_path / "plan.json"
    file.write_text("{")
    for command in (["--n", 64], ["--calibrate"]):
        result = plan(*command, file=file, check=False)
        assert result.returncode == 1 and str(file) in result.stderr and "--calibrate" in result.stderr
    units = {"operations": 1e-11, "exponentials": 1e-9, "bytes": 1e-10, "calls": 1e-6, "sequences": 1e-6}
    engines = {name: dict(units) for name in ("passes", "backward_passes", "core", "backward_core", "plain",
                                                   "softmax_attention")}
    engines["passes"]["operations"] = 1.0
    file.write_text(json.dumps({"dba_plan": 1, "machine": "", "constants": {"cpu/float32": engines}}))
    report = json.loads(plan("--n", 64, "--json", file=file).stdout)
    assert report["constants"] == {"calibrated": True, "file": str(file)}
    assert report["choice"] in ("reference", "direct")
    assert json.loads(plan("--n", 4096, "--dtype", "float64", "--json", file=file).stdout)["choice"] == "fused"


def test_help_has_examples():
    text = plan("--help").stdout
    assert "Examples:" in text and "--calibrate" in text and "DBA_PLAN_FILE" in text
