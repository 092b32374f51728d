#!/usr/bin/env bash
# The format check, then shellcheck and cppcheck where they are installed.
set -euo pipefail
cd "$(dirname "$0")/.."
scripts/format.sh --check
if command -v shellcheck >/dev/null; then
  shellcheck scripts/*.sh tests/packaging/*.sh .ci/run
fi
if command -v cppcheck >/dev/null; then
  # torch's macros are given as far as a reader without torch's headers needs them. Modules call reset() in their
  # constructor, as all of torch's do. In atomic_write.cc a path is made from a pointer before its owner goes. Variable
  # templates (kLanes<T> - 1) are read as comparisons, lanes of a vector as parts of it that nobody sets, and a pointer
  # into a vector as one to a single element.
  cppcheck --quiet --std=c++20 --language=c++ --enable=warning,portability --error-exitcode=1 \
    --suppress=missingInclude --suppress=virtualCallInConstructor \
    --suppress=returnDanglingLifetime:src/bytes/atomic_write.cc --suppress=compareBoolExpressionWithInt \
    --suppress=uninitvar:src/ops/cpu/isa/dropout.h --suppress=objectIndex:src/ops/cpu/attention_pass.cc \
    -D'TORCH_ARG(T,name)=T name##_' -D'TORCH_MODULE(Name)=' \
    -D'TORCH_LIBRARY(ns,m)=static void define_##ns(torch::Library& m)' \
    -D'TORCH_LIBRARY_FRAGMENT(ns,m)=static void extend_##ns(torch::Library& m)' \
    -D'TORCH_LIBRARY_IMPL(ns,key,m)=static void register_##ns##_##key(torch::Library& m)' \
    -I include -I src src
fi
