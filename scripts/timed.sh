#!/usr/bin/env bash
# Runs a command and prints how long it took.
# usage: timed.sh NAME COMMAND...
set -uo pipefail
name=$1
shift
start=$(date +%s.%N)
"$@"
status=$?
printf -- '-- %s took %.1f s\n' "$name" "$(awk "BEGIN { print $(date +%s.%N) - $start }")"
exit "$status"
