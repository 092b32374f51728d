#!/usr/bin/env bash
# Makes data, trains a classifier on it, measures it, classifies three expressions, draws the learning curve.
# usage: quickstart.sh PROGRAM
set -euo pipefail
cd "$(dirname "$0")/.."
dba=$1
data=data/quickstart
run=runs/quickstart

step() {
  printf '\n\033[1m%s\033[0m\n' "$*"
}

step "1. Data: ListOps expressions of 9 to 29 symbols, depth at most 3"
"$dba" generate listops --out $data --max-depth 3 --max-args 4 --min-length 8 --max-length 30 \
  --train 40000 --validation 1000 --test 2000

step "2. Train a DBA classifier: configs/quickstart.yaml (about two minutes on two cores)"
rm -rf $run
"$dba" train --config configs/quickstart.yaml --run $run

step "3. Evaluate on the test file, with two models that know no attention beside it"
"$dba" evaluate $run --baselines --quiet

step "4. Predict three expressions: their values are 9, 2 and 3 (sums modulo ten, SM, it has not learned: any digit)"
printf '%s\n' '{"text": "[MAX 2 9 [MIN 4 7 ] 1 ]"}' '{"text": "[MIN 6 [MED 2 8 2 ] 5 ]"}' \
  '{"text": "[SM 7 [MAX 1 2 ] 4 ]"}' | "$dba" predict $run

step "The run is in $run. Next: $dba train --print-config, or README.md"
