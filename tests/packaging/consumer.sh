#!/usr/bin/env bash
# Installs the package and builds examples/consumer against it, as somebody else's project would.
# usage: consumer.sh CMAKE BUILD_FOLDER TORCH_FOLDER
set -euo pipefail
cmake=$1 build=$2 torch=$3
cd "$(dirname "$0")/../.."

rm -rf "$build/install-tree" "$build/consumer"
"$cmake" --install "$build" --prefix "$build/install-tree" >/dev/null
unset LD_LIBRARY_PATH DBA_PYTHON DBA_TORCH_PATH
"$build/install-tree/bin/dba" info >/dev/null

"$cmake" -S examples/consumer -B "$build/consumer" -G Ninja -D CMAKE_BUILD_TYPE=Release \
  -D CMAKE_PREFIX_PATH="$build/install-tree" -D DBA_TORCH_PATH="$torch"
"$cmake" --build "$build/consumer"
output=$("$build/consumer/consumer")
echo "$output"
grep -q '\[2, 100, 64\]' <<<"$output" || { echo "consumer.sh: expected an output of sizes [2, 100, 64]"; exit 1; }
