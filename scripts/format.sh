#!/usr/bin/env bash
# Formats the C++ and CUDA files that git knows or would add; with --check, says which ones are not formatted.
set -euo pipefail
cd "$(dirname "$0")/.."

clang_format=clang-format
for folder in .venv/bin "${DBA_PYTHON:+$(dirname "$DBA_PYTHON")}"; do
  if [ -n "$folder" ] && [ -x "$folder/clang-format" ]; then
    clang_format=$folder/clang-format
    break
  fi
done

mapfile -t files < <(git ls-files --cached --others --exclude-standard -- '*.h' '*.cc' '*.cpp' '*.cu' '*.cuh' | sort -u)
present=()
for file in "${files[@]}"; do
  [ -f "$file" ] && present+=("$file")
done
if [ ${#present[@]} -eq 0 ]; then
  echo "format.sh: git names no C++ file here; run it in a checkout"
  exit 1
fi
if [ "${1:-}" = --check ]; then
  "$clang_format" --dry-run -Werror "${present[@]}" || { echo "Run 'make format'."; exit 1; }
else
  "$clang_format" -i "${present[@]}"
fi
