"""scripts/check_gpu.sh with stand-ins for the GPU, for compute-sanitizer and for all that runs under it."""

import os
import pathlib
import shutil
import subprocess

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
SCRIPT = ROOT / "scripts" / "check_gpu.sh"
TOOLS = "awk bash cat dirname env git grep mkdir realpath rm sed sleep sort tail timeout".split()
EVERY_LINE = ["tests-python", "tests-cpp", "memcheck-tests", "memcheck-cpp", "memcheck-calls", "synccheck-tests",
              "synccheck-cpp", "synccheck-calls", "racecheck-general", "racecheck-rest", "initcheck-calls", "training"]

# Runs the command, then says what lies in the folder CANNED under the tool's name, or that all is well.
SANITIZER = """
[ "$1" = --version ] && { echo "Version 2025.3.0"; exit; }
tool=$2
echo "$*" >>"$CANNED/asked"
shift 2
while [[ $1 == --* ]]; do shift 2; done
echo "========= COMPUTE-SANITIZER"
"$@"
status=$?
if [ -e "$CANNED/$tool" ]; then
  cat "$CANNED/$tool"
elif [ "$tool" = racecheck ]; then
  echo "========= RACECHECK SUMMARY: 0 hazards displayed (0 errors, 0 warnings)"
else
  echo "========= ERROR SUMMARY: 0 errors"
fi
exit $status
"""
PYTHON = """
case "$*" in
  -c*) exit ${SEES_NO_GPU:-0} ;;
  *sanitized_calls*) echo "poison ${DBA_POISON_SCRATCH:-} caching off ${PYTORCH_NO_CUDA_MEMORY_CACHING:-} $DBA_LIBRARY"
                     echo "7 calls, all results finite" ;;
  *pytest*) echo "${TESTED:-40 passed, 2 skipped, 202 deselected in 1.23s}" ;;
esac
exit ${PYTHON_STATUS:-0}
"""
PROGRAM = """
while [ $# -gt 0 ]; do
  [ "$1" = --run ] && mkdir -p "$2" && echo "{}" >"$2/report.json"
  shift
done
"""
INITCHECK = """\
========= Uninitialized __global__ memory read of size 16 bytes
=========     at void at::native::vectorized_elementwise_kernel<(int)4, at::native::AddFunctor<float>>(int, T2)+0x3a0
=========     by thread (31,0,0) in block (1,0,0)
=========     Address 0x7f3c7ec000fc
=========
========= Uninitialized __global__ memory read of size 16 bytes
=========     at void at::native::vectorized_elementwise_kernel<(int)4, at::native::MulFunctor<float>>(int, T2)+0x90
=========     by thread (30,0,0) in block (1,0,0)
=========     Address 0x7f3c7ec000ec
=========
========= Host API memory access error at host access to 0x1303fd1400 of size 25600 bytes
=========     Uninitialized access at 0x1303fd4600 on access by cudaMemcopy source.
=========
"""
OF_OURS = """\
========= Uninitialized __global__ memory read of size 4 bytes
=========     at void dba::ops::cuda::hopper::<unnamed>::merge_kernel<(int)4>(Sums)+0x1f0 in merge.cu:51
=========     by thread (0,0,0) in block (0,0,0)
=========     Address 0x7f3c7ec00010
=========
"""


def write_program(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("#!/usr/bin/env bash\n" + text)
    path.chmod(0o755)


class Machine:
    """Programs that pretend, in folders of their own."""

    def __init__(self, folder):
        self.folder, self.bin, self.build = folder, folder / "bin", folder / "build"
        self.canned, self.logs = folder / "canned", folder / "logs"
        self.bin.mkdir()
        self.canned.mkdir()
        for tool in TOOLS:
            (self.bin / tool).symlink_to(shutil.which(tool))
        write_program(self.bin / "nvidia-smi", 'echo "GPU 0: NVIDIA H200 (UUID: GPU-0)"\n')
        write_program(self.bin / "compute-sanitizer", SANITIZER)
        write_program(folder / "python", PYTHON)
        write_program(self.build / "bin" / "dba", PROGRAM)
        write_program(self.build / "tests" / "test_cuda", 'echo "[  PASSED  ] 3 tests."\n')
        (self.build / "lib").mkdir()
        (self.build / "lib" / "libdba_cuda.so").touch()

    def check(self, *arguments, **environment):
        environment = {"PATH": str(self.bin), "DBA_PYTHON": str(self.folder / "python"), "CANNED": str(self.canned),
                       "CUDA_HOME": str(self.folder), **environment}
        return subprocess.run([str(SCRIPT), "--build", str(self.build), "--logs", str(self.logs), *arguments],
                              capture_output=True, text=True, timeout=60, env=environment)

    def table(self, *arguments, **environment):
        """The exit status and what each line says; all that is printed in `said`."""
        result = self.check(*arguments, **environment)
        self.said = result.stdout + result.stderr
        rows = {}
        for row in result.stdout[result.stdout.index("check  "):].splitlines()[1:]:
            if not row:
                break
            name, _, verdict = row.split(maxsplit=2)
            rows[name] = verdict.split("  ")[0]
        return result.returncode, rows


@pytest.fixture
def machine(tmp_path):
    return Machine(tmp_path)


def test_all_checks_pass_and_say_what_ran(machine):
    status, rows = machine.table("--jobs", "4")
    assert status == 0, machine.said
    assert list(rows) == EVERY_LINE
    assert rows["tests-python"] == "passed: 40 passed, 2 skipped"
    assert rows["tests-cpp"] == "passed: 3 passed"
    assert rows["memcheck-tests"] == "passed: 0 errors, 40 passed, 2 skipped"
    assert rows["racecheck-rest"] == "passed: 0 errors, 7 calls"
    assert rows["initcheck-calls"] == "passed: 0 reads of ours, 0 of others, 0 copies, 7 calls"
    assert rows["training"] == "passed: 0 errors, 6 updates"
    assert "NVIDIA H200" in machine.said and "for which it needs --racecheck-build" in machine.said
    assert "poison 0 caching off 1" in (machine.logs / "initcheck-calls.log").read_text()
    asked = (machine.canned / "asked").read_text()
    assert "--tool initcheck --print-limit 1000000 --show-backtrace no" in asked
    assert "--set device=cuda" in asked and "schedule.warmup=2" in asked


def test_racecheck_takes_its_own_build_and_only_a_fitting_one(machine):
    other = machine.folder / "racecheck"
    assert machine.check("--racecheck-build", str(other)).returncode == 2
    (other / "lib").mkdir(parents=True)
    (other / "lib" / "libdba_cuda.so").touch()
    (other / "CMakeCache.txt").write_text("DBA_RACECHECK:BOOL=OFF\n")
    refused = machine.check("--racecheck-build", str(other))
    assert refused.returncode == 2 and "was not built with -DDBA_RACECHECK=ON" in refused.stderr
    (other / "CMakeCache.txt").write_text("DBA_RACECHECK:BOOL=ON\n")
    assert machine.table("racecheck", "--racecheck-build", str(other)) == \
        (0, {"racecheck-calls": "passed: 0 errors, 7 calls"})
    assert str(other / "lib" / "libdba.so") in (machine.logs / "racecheck-calls.log").read_text()


@pytest.mark.parametrize("tool,summary,verdict", [
    ("memcheck", "ERROR SUMMARY: 2 errors\n========= ERROR SUMMARY: 1 errors were not printed. Use --print-limit",
     "failed: 2 errors, 7 calls"),
    ("racecheck", "RACECHECK SUMMARY: 1 hazard displayed (0 errors, 1 warning)", "failed: 1 errors, 7 calls"),
    ("synccheck", "Internal error", "failed: the tool gave no summary, 7 calls"),
])
def test_what_a_tool_reports_is_a_failure(machine, tool, summary, verdict):
    (machine.canned / tool).write_text(f"========= {summary}\n")
    status, rows = machine.table(tool, "tests")
    assert status == 1
    assert rows["racecheck-general" if tool == "racecheck" else f"{tool}-calls"] == verdict
    assert rows["tests-cpp"].startswith("passed")


def test_tests_that_fail_or_do_not_run_are_a_failure(machine):
    status, rows = machine.table("tests", "memcheck", TESTED="1 failed, 39 passed in 2.00s", PYTHON_STATUS="1")
    assert status == 1 and rows["tests-cpp"] == "passed: 3 passed"
    assert rows["tests-python"] == rows["memcheck-tests"] == "failed: exit status 1, 1 failed, 39 passed"
    write_program(machine.build / "tests" / "test_cuda", 'echo "[  PASSED  ] 0 tests."\n')
    status, rows = machine.table("tests", TESTED="40 skipped, 202 deselected in 2.92s")
    assert status == 1 and set(rows.values()) == {"failed: nothing has run"}
    assert machine.table("tests", SEES_NO_GPU="1")[1]["tests-python"] == "failed: nothing has run, exit status 1"


def test_reads_of_others_are_listed_and_those_of_ours_count(machine):
    log = machine.canned / "initcheck"
    log.write_text(INITCHECK + "========= ERROR SUMMARY: 3 errors\n")
    assert machine.table("initcheck") == \
        (0, {"initcheck-calls": "passed: 0 reads of ours, 2 of others, 1 copies, 7 calls"})
    assert "         2  others   at::native::vectorized_elementwise_kernel\n" in machine.said
    log.write_text(INITCHECK + OF_OURS + "========= ERROR SUMMARY: 4 errors\n")
    assert machine.table("initcheck") == \
        (1, {"initcheck-calls": "failed: 1 reads of ours, 2 of others, 1 copies, 7 calls"})
    assert "         1  ours     dba::ops::cuda::hopper::merge_kernel\n" in machine.said


@pytest.mark.parametrize("end,why", [
    ("========= ERROR SUMMARY: 9 errors\n", "the log has 3 of 9 reports"),
    ("========= Internal Sanitizer Error 12\n========= ERROR SUMMARY: 4 errors\n", "1 reports of another kind"),
    ("========= Uninitialized __global__ memory read of size 4 bytes\n========= ERROR SUMMARY: 4 errors\n",
     "1 reports of another kind"),
    ("", "the tool gave no summary"),
])
def test_reports_that_nobody_can_place_are_a_failure(machine, end, why):
    (machine.canned / "initcheck").write_text(INITCHECK + end)
    assert machine.table("initcheck") == (1, {"initcheck-calls": f"failed: {why}, 7 calls"})


def test_what_runs_into_the_limit_is_not_finished(machine):
    write_program(machine.build / "tests" / "test_cuda", 'echo "[  PASSED  ] 3 tests."; sleep 30\n')
    assert machine.table("tests", "--seconds", "1") == \
        (1, {"tests-python": "passed: 40 passed, 2 skipped", "tests-cpp": "not finished within 1 s"})


def test_without_a_gpu_all_is_skipped(machine):
    write_program(machine.bin / "nvidia-smi", "exit 9\n")
    status, rows = machine.table()
    assert status == 1 and list(rows) == EVERY_LINE and set(rows.values()) == {"skipped: no GPU"}
    assert "because nvidia-smi -L names no GPU" in machine.said and not machine.logs.exists()
    assert machine.table("--allow-skip", "training") == (0, {"training": "skipped: no GPU"})


def test_without_compute_sanitizer_the_tests_run(machine):
    (machine.bin / "compute-sanitizer").unlink()
    skipped = {"tests-python": "passed: 40 passed, 2 skipped", "tests-cpp": "passed: 3 passed",
               "training": "skipped: no compute-sanitizer"}
    assert machine.table("training", "tests") == (1, skipped)
    assert "compute-sanitizer is neither on the PATH nor in CUDA_HOME" in machine.said
    assert machine.table("training", "tests", "--allow-skip") == (0, skipped)
    assert machine.table("tests", "--allow-skip", TESTED="1 failed in 2.00s", PYTHON_STATUS="1")[0] == 1


def test_without_cuda_kernels_there_is_nothing_to_check(machine):
    (machine.build / "lib" / "libdba_cuda.so").unlink()
    result = machine.check()
    assert result.returncode == 1 and "there is no lib/libdba_cuda.so" in result.stderr


@pytest.mark.parametrize("arguments", [["leakcheck"], ["--fast"], ["--seconds", "0"], ["--jobs", "many"], ["--build"]])
def test_wrong_usage_is_told_apart(machine, arguments):
    result = machine.check(*arguments)
    assert result.returncode == 2 and "see --help" in result.stderr and not result.stdout


def test_help_has_examples(machine):
    result = machine.check("--help")
    assert result.returncode == 0 and "Examples:" in result.stdout
    assert all(f"\n  {check} " in result.stdout for check in
               ("tests", "memcheck", "synccheck", "racecheck", "initcheck", "training"))
    assert os.access(SCRIPT, os.X_OK)
