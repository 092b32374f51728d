#!/usr/bin/env bash
# What the log of a line of check_gpu.sh's table says: prints a verdict that begins with passed, failed or not finished.
# Of initcheck it also writes LOG.reads: count, whose, kernel.
# usage: check_gpu_verdict.sh LINE LOG STATUS SECONDS LIMIT
set -euo pipefail
line=$1 log=$2 status=$3 seconds=$4 limit=$5

# Errors or hazards that the tool counts, of all processes; nothing where it did not come to its end.
errors() {
  awk '/^=+ (ERROR|RACECHECK) SUMMARY: [0-9]+ (error|hazard)/ && !/not printed/ { found = 1; sum += $4 }
       END { if (found) print sum }' "$log"
}

# What has run: tests of pytest or GoogleTest, calls, updates.
what_ran() {
  sed -n -e 's/, [0-9]* deselected//' -e 's/^\(=* \)\{0,1\}\([0-9].* passed.*\) in [0-9.]*s.*/\2/p' \
    -e 's/^\[  PASSED  \] \([1-9][0-9]*\) tests\{0,1\}\.$/\1 passed/p' \
    -e 's/^\([0-9]* calls\), all results finite$/\1/p' -e 's/^\([0-9]* updates\) done$/\1/p' "$log" | tail -n 1
}

# initcheck's reports: reads by kernels of ours and of others, copies to the host, and what else there may be.
#
# The tool does not see what the copy engine writes (bulk tensor copies). Of our kernels only hopper::restore_kernel
# stores so, whole tiles of Y, and none of our operators reads Y. So in the calls of sanitized_calls.py, whose operands
# come from the host, every read of ours counts. Others may well be reported: PyTorch's kernels and copies that read Y,
# or dX of `restore` alone, which is a product of cuBLAS. In a model residual_norm reads Y and `activate` what cuBLAS
# stored: there a read of ours would prove nothing.
reads() {
  awk -v OFS='\t' '
    function add(whose, what) { count[whose OFS what]++ }
    /^=+ [^ ]/ && pending { add("unknown", "a read without its kernel"); pending = 0 }
    /^=+ Uninitialized .* read/ { pending = 1; next }
    /^=+ Host API memory access error/ { add("copies", "to the host"); next }
    /^=+ [^ ]/ && /[Ee]rror|Invalid|Program hit/ && !/SUMMARY/ {
      sub(/^=+ /, ""); gsub(/0x[0-9a-f]+|[0-9]+/, "…"); add("unknown", $0); next
    }
    pending && /^=+ +at / {
      whose = /dba::|3dba3ops/ ? "ours" : "others"
      sub(/^=+ +at +/, ""); sub(/^0x[0-9a-f]+ in /, ""); sub(/^void /, "")
      gsub(/<unnamed>::|\(anonymous namespace\)::/, ""); sub(/[<(+].*/, "")
      add(whose, $0); pending = 0
    }
    END {
      if (pending) add("unknown", "a read without its kernel")
      for (key in count) print count[key], key
    }' "$log" | sort -t $'\t' -k 2,2 -k 1,1nr
}

# number WHOSE: how many of these reads there are; of all without it.
number() {
  awk -F '\t' -v whose="${1:-}" 'whose == "" || $2 == whose { sum += $1 } END { print sum + 0 }' "$log.reads"
}

if [ "$status" -eq 124 ] || { [ "$status" -eq 137 ] && [ "$seconds" -ge "$limit" ]; }; then
  echo "not finished within $limit s"
  exit
fi
found='' wrong=''
case $line in
  tests-*) ;;
  initcheck-*)
    reads >"$log.reads"
    counted=$(errors)
    found="$(number ours) reads of ours, $(number others) of others, $(number copies) copies"
    [ "$(number ours)" -eq 0 ] || wrong=$found
    [ "$(number unknown)" -eq 0 ] || wrong="$(number unknown) reports of another kind"
    [ "${counted:-0}" -le "$(number)" ] || wrong="the log has $(number) of $counted reports"
    [ -n "$counted" ] || wrong="the tool gave no summary"
    ;;
  *)
    found="$(errors) errors"
    [ "$found" = "0 errors" ] || wrong=$found
    [ "$found" != " errors" ] || wrong="the tool gave no summary"
    ;;
esac
ran=$(what_ran)
[ -n "$ran" ] || wrong=${wrong:-nothing has run}
[ "$status" -eq 0 ] || wrong=${wrong:+$wrong, }"exit status $status"
if [ -n "$wrong" ]; then
  echo "failed: $wrong${ran:+, $ran}"
else
  echo "passed: ${found:+$found, }$ran"
fi
