#!/usr/bin/env bash
# The standard measurements of this machine, in under five minutes: bench/standard.sh build/release
# Writes tables, JSON and pictures into BUILD/bench-results.
set -euo pipefail
cd "$(dirname "$0")/.."
build=${1:?"usage: bench/standard.sh BUILD_FOLDER"}
dba=$build/bin/dba
results=$build/bench-results
mkdir -p "$results"
status=0

# A method that cannot run here leaves the other figures standing, and the script ends with status 1.
measure() {
  local name=$1
  shift
  "$dba" bench "$@" --json "$results/$name.json" --csv "$results/$name.csv" | tee "$results/$name.txt" || status=1
  echo
}

if "$dba" info --json | grep -q '"usable": true'; then
  measure layer_cuda layer --device cuda --dtype bfloat16 --seconds 0.5
  measure train_step_cuda train-step --device cuda --dtype autocast,bfloat16 --seconds 1
fi
measure layer layer --lengths 128,512,1024,4096 --seconds 0.4 --repeats 15
measure layer_long layer --lengths 16384 --pass forward --seconds 0.4 --repeats 15
measure layer_cold layer --lengths 512,4096 --pass forward --cache cold --seconds 0.2 --repeats 10
measure encoder encoder --lengths 512,2048 --tokens 4096 --depth 2 --seconds 0.4 --repeats 5
measure train_step train-step --batch 2 --depth 2 --seconds 0.4 --repeats 5

if [[ -x $build/bench/bench_ops ]]; then
  "$build/bench/bench_ops" --benchmark_min_time=0.1 --benchmark_out="$results/operators.json" --benchmark_out_format=json
fi
if python3 -c 'import matplotlib' 2>/dev/null; then
  bench/plot "$results/layer.json" --output "$results/layer.svg"
fi
echo "everything is in $results"
exit "$status"
