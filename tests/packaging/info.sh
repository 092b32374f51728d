#!/usr/bin/env bash
# What `dba` says of itself, and the exit statuses it promises.
# usage: info.sh PROGRAM VERSION
set -euo pipefail
dba=$1 version=$2
failures=0

# expect STATUS ARGUMENTS... -- TEXT...: the exit status, and texts that the output holds.
expect() {
  local expected=$1 status=0 arguments=() output text
  shift
  while [ "$1" != -- ]; do
    arguments+=("$1")
    shift
  done
  shift
  output=$("$dba" "${arguments[@]}" 2>&1) || status=$?
  if [ "$status" != "$expected" ]; then
    echo "dba ${arguments[*]}: expected exit status $expected, got $status"
    failures=$((failures + 1))
  fi
  for text in "$@"; do
    if ! grep -qF -- "$text" <<<"$output"; then
      echo "dba ${arguments[*]}: expected '$text' in: $output"
      failures=$((failures + 1))
    fi
  done
}

expect 0 --version -- "$version"
expect 0 --help -- Examples: "Exit status"
expect 0 info --help -- Examples: --json
expect 2 --
expect 2 nonsense --
expect 2 info --nonsense --
expect 0 info -- "dba       $version" compiler torch CPU threads CUDA devices
expect 0 info --json -- "\"version\": \"$version\"" '"commit":' '"compiler":' '"torch":' '"features":' '"threads":' \
  '"runtime":' '"driver":' '"devices":'
exit $((failures > 0))
