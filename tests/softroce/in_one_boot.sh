#!/usr/bin/env bash
# In the guest: runs a test binary several times in one boot, each time with other arguments, and says at the end which
# runs failed. A run that fails, or runs no test case, does not keep the next from running.
#
#   in_one_boot.sh <binary> --run <name> <argument>... [--run <name> <argument>...]...
set -uo pipefail
binary=$1
shift
failed=() count=0
while [ $# -gt 0 ]; do
  [ "$1" = --run ] && [ $# -ge 2 ] || { echo "in_one_boot: expected --run <name>, found '$1'"; exit 2; }
  name=$2 arguments=()
  shift 2
  while [ $# -gt 0 ] && [ "$1" != --run ]; do
    arguments+=("$1")
    shift
  done
  echo "== $name"
  count=$((count + 1))
  if "$binary" --duration=true "${arguments[@]}"; then
    echo "== $name passed"
  else
    failed+=("$name (status $?)")
  fi
done
[ $count -gt 0 ] || { echo "in_one_boot: nothing to run"; exit 2; }
[ ${#failed[@]} -eq 0 ] || { printf '== FAILED: %s\n' "${failed[@]}"; exit 1; }
