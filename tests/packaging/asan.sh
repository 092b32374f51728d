#!/usr/bin/env bash
# Builds the torch-free library and its tests, the fuzzers among them, under the sanitisers, and runs them.
# usage: asan.sh CMAKE CTEST
set -euo pipefail
cd "$(dirname "$0")/../.."
"$1" --preset asan
"$1" --build --preset asan --parallel 2
"$2" --preset asan
