#!/usr/bin/env bash
# Installs what the build needs: Debian packages, and Python packages into .venv.
# With DBA_PYTHON, a Python that has torch, .venv holds only the tools that are missing beside it.
set -euo pipefail
cd "$(dirname "$0")/.."
smallest_torch=2.11
smallest_cmake=3.31

fail() {
  echo "setup: $*" >&2
  exit 1
}

# at_least 4.1.0 3.31: whether the first version is the second or newer.
at_least() {
  [ "$(printf '%s\n%s\n' "$2" "$1" | sort -V | head -n 1)" = "$2" ]
}

install_debian_packages() {
  local wanted=(build-essential git libcli11-dev nlohmann-json3-dev libyaml-cpp-dev libpng-dev zlib1g-dev libhdf5-dev
    libgtest-dev libgmock-dev libbenchmark-dev)
  local missing=() package
  if ! command -v dpkg-query >/dev/null; then
    echo "setup: not a Debian system; these packages, or their like, are needed: ${wanted[*]}"
    return
  fi
  if [ -z "${DBA_PYTHON:-}" ] && ! python3 -c 'import ensurepip, venv' 2>/dev/null; then
    wanted+=(python3-venv)
  fi
  for package in "${wanted[@]}"; do
    dpkg-query -W -f '${db:Status-Status}' "$package" 2>/dev/null | grep -qx installed || missing+=("$package")
  done
  [ ${#missing[@]} -eq 0 ] && return

  local as_root=()
  if [ "$(id -u)" -ne 0 ]; then
    command -v sudo >/dev/null || fail "as root, run: apt-get install ${missing[*]}"
    as_root=(sudo)
  fi
  echo "setup: installing ${missing[*]}"
  { "${as_root[@]}" apt-get update -qq &&
    "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${missing[@]}"; } \
    >/dev/null || fail "could not install packages; as root, run: apt-get install ${missing[*]}"
}

check_given_python() {
  local version name absent=()
  [ -x "$(command -v "$DBA_PYTHON")" ] || fail "DBA_PYTHON=$DBA_PYTHON is not a program"
  version=$("$DBA_PYTHON" -c 'from importlib.metadata import version; print(version("torch"))' 2>/dev/null) ||
    fail "DBA_PYTHON=$DBA_PYTHON has no torch; torch $smallest_torch or newer is needed"
  at_least "$version" "$smallest_torch" ||
    fail "DBA_PYTHON=$DBA_PYTHON has torch $version; torch $smallest_torch or newer is needed"
  for name in pytest numpy safetensors; do
    "$DBA_PYTHON" -c "import importlib.util, sys; sys.exit(importlib.util.find_spec('$name') is None)" ||
      absent+=("$name")
  done
  if [ ${#absent[@]} -gt 0 ]; then
    echo "setup: $DBA_PYTHON lacks ${absent[*]}; the tests in Python are left out"
  fi
}

# Whether cmake, ninja and the pinned clang-format are on the PATH already.
tools_are_here() {
  local clang_format
  clang_format=$(sed -n 's/^clang-format==//p' requirements.txt)
  command -v ninja >/dev/null && command -v cmake >/dev/null && command -v clang-format >/dev/null &&
    at_least "$(cmake --version | sed -n 's/^cmake version //p')" "$smallest_cmake" &&
    clang-format --version | grep -qF "version $clang_format"
}

# Megabytes that are free where $1 lies.
free_megabytes() {
  df -Pm "$1" | awk 'NR == 2 { print $4 }'
}

# PyTorch and what it brings take 5.3 GB in .venv, and its wheels 2.8 GB in TMPDIR until pip is done with them.
check_free_space() {
  local installed=5300 wheels=2800 unpacked=${TMPDIR:-/tmp} here there
  local remedy="make room, or name a Python that has torch with DBA_PYTHON"
  here=$(free_megabytes .) && there=$(free_megabytes "$unpacked") || return 0
  if [ "$(stat -c %d .)" = "$(stat -c %d "$unpacked")" ]; then
    [ "$here" -ge $((installed + wheels)) ] ||
      fail "$here MB are free in $PWD; PyTorch needs $((installed + wheels)) there while it is installed: $remedy"
    return 0
  fi
  [ "$here" -ge "$installed" ] || fail "$here MB are free in $PWD; PyTorch needs $installed there: $remedy"
  [ "$there" -ge "$wheels" ] ||
    fail "$there MB are free in $unpacked; pip needs $wheels there for PyTorch's wheels: make room, or set TMPDIR"
}

fill_venv() {
  local stamp
  stamp=$(printf '%s\n' "$@" | sha256sum)
  [ -f .venv/setup.stamp ] && [ "$(cat .venv/setup.stamp)" = "$stamp" ] && return
  if [[ " $*" == *" torch=="* ]] && ! compgen -G '.venv/lib/python3*/site-packages/torch' >/dev/null; then
    check_free_space
  fi
  echo "setup: installing Python packages into .venv: $*"
  if [ ! -x .venv/bin/python ]; then
    python3 -c 'import sys; sys.exit(sys.version_info < (3, 10))' ||
      fail "python3 is older than 3.10; put a newer one first on the PATH, or name one with DBA_PYTHON"
    python3 -m venv .venv
  fi
  .venv/bin/python -m pip install -q --disable-pip-version-check "$@" || fail "pip could not install $*"
  echo "$stamp" >.venv/setup.stamp
}

# Without them the tests that compare with them are skipped.
add_packages_to_compare_with() {
  local list=tests/python/requirements.txt
  cmp -s "$list" .venv/compared.stamp && return
  .venv/bin/python -m pip install -q --disable-pip-version-check --no-deps -r "$list" || fail "pip could not install $list"
  cp "$list" .venv/compared.stamp
}

install_debian_packages
if [ -n "${DBA_PYTHON:-}" ]; then
  check_given_python
  if ! tools_are_here; then
    mapfile -t tools < <(grep -E '^(cmake|ninja|clang-format)==' requirements.txt)
    fill_venv "${tools[@]}"
  fi
else
  mapfile -t packages < <(grep -v '^#' requirements.txt)
  fill_venv "${packages[@]}"
  add_packages_to_compare_with
fi
