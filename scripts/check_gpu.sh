#!/usr/bin/env bash
# Proves the CUDA kernels on a machine with a GPU: tests, compute-sanitizer's tools, a training run under memcheck.
# usage: check_gpu.sh [OPTIONS] [CHECK...]
set -uo pipefail
all_checks=(tests memcheck synccheck racecheck initcheck training)

print_help() {
  cat <<'END'
Proves the CUDA kernels on a machine with a GPU
Usage: scripts/check_gpu.sh [OPTIONS] [CHECK...]

Checks, all of them where none is named:
  tests        the GPU tests, in Python and in C++
  memcheck     compute-sanitizer over the operators: addresses
  synccheck    barriers
  racecheck    hazards in shared memory
  initcheck    reads of memory that nobody wrote
  training     six updates with dropout and evaluation under memcheck

Options:
  --build DIR            what is checked (build/release)
  --racecheck-build DIR  a build with -DDBA_RACECHECK=ON; without one racecheck leaves out the Hopper kernels of
                         compress and restore
  --seconds N            limit of each line of the table (600); what runs into it has not passed
  --jobs N               lines of the table that are worked on at a time (1)
  --logs DIR             where the logs go (BUILD/gpu-check)
  --allow-skip           no GPU or no compute-sanitizer is no failure
  --help                 print this

Examples:
  scripts/check_gpu.sh
  scripts/check_gpu.sh tests memcheck --seconds 300
  cmake --preset release -B build/racecheck -DDBA_RACECHECK=ON && cmake --build build/racecheck --target dba_cuda
  scripts/check_gpu.sh racecheck --racecheck-build build/racecheck
Python is DBA_PYTHON, .venv's or python3; compute-sanitizer comes from the PATH or CUDA_HOME (/usr/local/cuda).
Exit status: 0 all passed, 1 something failed, was not finished or skipped, 2 wrong usage.
END
}

wrong_usage() {
  echo "check_gpu.sh: $*; see --help" >&2
  exit 2
}

# The options. Folders are the caller's, the default ones the checkout's.
wanted=() build='' racecheck_build='' logs='' seconds=600 jobs=1 allow_skip=no
while [ $# -gt 0 ]; do
  case $1 in
    --help | -h)
      print_help
      exit
      ;;
    --allow-skip) allow_skip=yes ;;
    --build | --racecheck-build | --logs | --seconds | --jobs)
      [ $# -gt 1 ] || wrong_usage "$1 needs a value"
      case $1 in
        --build) build=$(realpath -m -- "$2") ;;
        --racecheck-build) racecheck_build=$(realpath -m -- "$2") ;;
        --logs) logs=$(realpath -m -- "$2") ;;
        *)
          [[ $2 =~ ^[1-9][0-9]*$ ]] || wrong_usage "$1 must be a number from 1 on, got '$2'"
          [ "$1" = --jobs ] && jobs=$2 || seconds=$2
          ;;
      esac
      shift
      ;;
    -*) wrong_usage "there is no option $1" ;;
    *)
      [[ " ${all_checks[*]} " == *" $1 "* ]] || wrong_usage "there is no check '$1', only ${all_checks[*]}"
      wanted+=("$1")
      ;;
  esac
  shift
done
[ ${#wanted[@]} -gt 0 ] || wanted=("${all_checks[@]}")
if [ -n "$racecheck_build" ]; then
  [ -e "$racecheck_build/lib/libdba_cuda.so" ] || wrong_usage "there is no lib/libdba_cuda.so in $racecheck_build"
  cache=$racecheck_build/CMakeCache.txt
  if [ -e "$cache" ] && ! grep -qE '^DBA_RACECHECK:BOOL=(ON|1|TRUE|YES)$' "$cache"; then
    wrong_usage "$racecheck_build was not built with -DDBA_RACECHECK=ON"
  fi
fi
cd "$(dirname "$0")/.." || exit 1
build=${build:-$PWD/build/release}
logs=${logs:-$build/gpu-check}

python=${DBA_PYTHON:-python3}
[ -z "${DBA_PYTHON:-}" ] && [ -x .venv/bin/python3 ] && python=.venv/bin/python3
sanitizer=$(command -v compute-sanitizer || command -v "${CUDA_HOME:-/usr/local/cuda}/bin/compute-sanitizer" || true)
gpu=$(nvidia-smi -L 2>/dev/null | grep -m 1 '^GPU ' || true)

# The lines of the table, in order: CHECK or CHECK-WITH.
lines=()
for check in "${all_checks[@]}"; do
  [[ " ${wanted[*]} " == *" $check "* ]] || continue
  case $check in
    tests) lines+=(tests-python tests-cpp) ;;
    memcheck | synccheck) lines+=("$check-tests" "$check-cpp" "$check-calls") ;;
    racecheck) [ -n "$racecheck_build" ] && lines+=(racecheck-calls) || lines+=(racecheck-general racecheck-rest) ;;
    initcheck) lines+=(initcheck-calls) ;;
    training) lines+=(training) ;;
  esac
done

# limited COMMAND...: within the limit, and gone when the line is.
limited() {
  timeout -k 10 "$seconds" "$@" &
  local pid=$!
  trap 'kill "$pid"; wait "$pid"' TERM
  wait "$pid"
}

# under TOOL COMMAND...
under() {
  limited "$sanitizer" --tool "$@"
}

# Tests that reach all kernels of the passes in a few minutes; a layer of width 512 alone would take longer. Widths of two
# tiles go to the general kernels in any case.
some_tests="bfloat16 and not (tiles and general) and (text or odd or image or shared_192 or uneven or linear_bias"
some_tests+=" or each_and_shared or odd_width or many_slots or (wide and not widest and not attention))"
# Those of core, fold, residual and activation that neither repeat thirty times nor record anything.
light_tests="CoreOnGpu.*:FoldOnGpu.*:OnGpu.*:Forms/ResidualNormOnGpu.*:Kinds/ActivateOnGpu.*:ActivateMaskOnGpu.*"
light_tests+=":ResidualMaskOnGpu.*:-*Repetitions*:*SameBits*"
pytest=(-m pytest -q -p no:cacheprovider)
calls=tests/python/sanitized_calls.py

train() {
  local data=$logs/training-data run=$logs/training-run
  rm -rf "$data" "$run"
  "$build/bin/dba" generate listops --out "$data" --max-depth 3 --max-args 4 --min-length 8 --max-length 30 \
    --train 2000 --validation 100 --test 100 --quiet || return
  under memcheck "$build/bin/dba" train --config configs/quickstart.yaml --run "$run" --set device=cuda \
    --set data.train="$data/basic_train.tsv" --set data.validation="$data/basic_val.tsv" \
    --set data.test="$data/basic_test.tsv" --set train.updates=6 --set train.evaluate_every=3 --set schedule.warmup=2 \
    --set precision=bfloat16 --set model.dropout=0.1 --set model.attention_dropout=0.1 || return
  [ -s "$run/report.json" ] && echo "6 updates done"
}

# work LINE: what the line stands for.
work() {
  local tool=${1%%-*}
  case $1 in
    tests-python)
      "$python" -c 'import torch; assert torch.cuda.is_available(), "PyTorch sees no GPU"' &&
        limited "$python" "${pytest[@]}" -k "cuda or gpu or agreeing" \
          tests/python/test_{cuda_passes,cuda_promises,ops,package_attention,package_ops,zoo,zoo_cuda,zoo_ranges}.py
      ;;
    tests-cpp) limited "$build/tests/test_cuda" ;;
    # After an error of synccheck the context is dead: the first failure is the last test.
    *-tests) under "$tool" "$python" "${pytest[@]}" -x tests/python/test_cuda_passes.py -k "$some_tests" ;;
    *-cpp) under "$tool" "$build/tests/test_cuda" --gtest_filter="$light_tests" ;;
    # float16 is the same code as bfloat16.
    racecheck-calls)
      DBA_LIBRARY=$racecheck_build/lib/libdba.so under racecheck "$python" $calls auto general --types bfloat16 float32
      ;;
    racecheck-general) under racecheck "$python" $calls general --types bfloat16 float32 ;;
    racecheck-rest)
      under racecheck "$python" $calls auto --types bfloat16 float32 \
        --operators core residual_norm residual_sum gelu relu fold fold_stack sums_beyond code_agreement \
        real_spectrum elu_plus_one
      ;;
    # Every tensor has an allocation of its own. Other kernels' reports must not keep ours from being printed.
    initcheck-calls)
      PYTORCH_NO_CUDA_MEMORY_CACHING=1 DBA_POISON_SCRATCH=0 \
        under initcheck --print-limit 1000000 --show-backtrace no "$python" $calls auto general
      ;;
    *-calls) PYTORCH_NO_CUDA_MEMORY_CACHING=1 under "$tool" "$python" $calls auto general ;;
    training) train ;;
  esac
}

# Does a line's work and leaves its seconds and its verdict in LINE.row.
do_line() {
  local start=$SECONDS status=0 took said
  work "$1" >"$logs/$1.log" 2>&1 || status=$?
  took=$((SECONDS - start))
  said=$(scripts/check_gpu_verdict.sh "$1" "$logs/$1.log" "$status" "$took" "$seconds")
  printf '%s\t%s\n' "$took" "$said" >"$logs/$1.row"
  printf '%s: %s (%s s)\n' "$1" "$said" "$took"
}

# Why a line cannot be worked on, or nothing.
obstacle() {
  if [ -z "$gpu" ]; then
    echo "no GPU"
  elif [ -z "$sanitizer" ] && [[ $1 != tests-* ]]; then
    echo "no compute-sanitizer"
  fi
}

if [ -n "$gpu" ]; then
  [ -e "$build/lib/libdba_cuda.so" ] ||
    { echo "check_gpu.sh: there is no lib/libdba_cuda.so in $build; 'make build' with nvcc makes one" >&2; exit 1; }
  mkdir -p "$logs" || exit 1
  printf '%s\ncommit %s, %s\n' "$gpu" "$(git describe --always --dirty 2>/dev/null)" "${build#"$PWD"/}"
  [ -z "$sanitizer" ] || "$sanitizer" --version 2>/dev/null | tail -n 1
fi
export DBA_LIBRARY=$build/lib/libdba.so DBA_PROGRAM=$build/bin/dba DBA_TEST_TOOLS=$build/test-tools
export PYTHONDONTWRITEBYTECODE=1 PYTHONUNBUFFERED=1
running=0
trap 'kill $(jobs -p) 2>/dev/null; wait; exit 130' INT TERM
for line in "${lines[@]}"; do
  [ -z "$(obstacle "$line")" ] || continue
  if [ "$running" -ge "$jobs" ]; then
    wait -n
    running=$((running - 1))
  fi
  rm -f "$logs/$line".{row,log.reads}
  do_line "$line" &
  running=$((running + 1))
done
wait

failed=no skipped=no
printf '\n%-18s %7s  %-66s %s\n' check seconds result log
for line in "${lines[@]}"; do
  why=$(obstacle "$line")
  if [ -n "$why" ]; then
    took=- said="skipped: $why" log=-
  else
    took=- said='failed: left no result' log=${logs#"$PWD"/}/$line.log
    [ -s "$logs/$line.row" ] && IFS=$'\t' read -r took said <"$logs/$line.row"
  fi
  case $said in
    passed*) ;;
    skipped*) skipped=yes ;;
    *) failed=yes ;;
  esac
  printf '%-18s %7s  %-66s %s\n' "$line" "$took" "$said" "$log"
done

# attempted LINE: whether it is in the table, and not skipped.
attempted() {
  [[ " ${lines[*]} " == *" $1 "* ]] && [ -z "$(obstacle "$1")" ]
}
if attempted initcheck-calls && [ -s "$logs/initcheck-calls.log.reads" ]; then
  printf '\ninitcheck, reads of memory that nobody but the copy engine, which it does not follow, can have written:\n'
  awk -F '\t' '{ printf "%10d  %-8s %s\n", $1, $2, $3 }' "$logs/initcheck-calls.log.reads"
fi
if attempted racecheck-general; then
  printf '\nracecheck: without the Hopper kernels of compress and restore, for which it needs --racecheck-build.\n'
fi
if [ "$skipped" = yes ]; then
  [ -n "$gpu" ] && why="compute-sanitizer is neither on the PATH nor in CUDA_HOME" || why="nvidia-smi -L names no GPU"
  [ "$allow_skip" = yes ] && end="as --allow-skip allows" || end="which counts as a failure without --allow-skip"
  printf '\ncheck_gpu.sh: skipped what cannot run here, because %s, %s.\n' "$why" "$end"
fi
[ "$failed" = no ] && { [ "$skipped" = no ] || [ "$allow_skip" = yes ]; }
