#!/usr/bin/env bash
# exports.sh <nm> <library> <header>: the library exports the functions of the header, all of them, and nothing
# else.
set -euo pipefail
exported=$("$1" --dynamic --defined-only --format=posix "$2" | awk '{print $1}' | sort -u)
declared=$(grep -oE '\btensorhub_[a-z_]+\(' "$3" | tr -d '(' | sort -u)
diff <(printf '%s\n' "$declared") <(printf '%s\n' "$exported") ||
  { echo "< declared, not exported; > exported, not declared"; exit 1; }
[ "$(wc -l <<<"$declared")" -gt 30 ] || { echo "only these functions were found in $3: $declared"; exit 1; }
