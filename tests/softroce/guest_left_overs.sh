#!/usr/bin/env bash
# What `guest` removes of earlier runs that were killed: their folders, and nothing that another name in the temporary
# folder leads to.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
mkdir -p "$scratch/temporary" "$scratch/clone/folder" "$scratch/elsewhere"
touch "$scratch/clone/folder/file" "$scratch/elsewhere/file"
cd "$scratch/temporary"

mkdir -m 700 tensorhub-guest.killed tensorhub-guest.running "tensorhub-guest.x *"
touch tensorhub-guest.killed/lock tensorhub-guest.running/lock "tensorhub-guest.x *"
ln -s "$scratch/elsewhere" tensorhub-guest.link
mkdir -m 777 tensorhub-guest.strange
ln -s "$scratch/made" tensorhub-guest.strange/lock
if [ "$(id -u)" -eq 0 ]; then
  chown -h nobody tensorhub-guest.strange tensorhub-guest.strange/lock
else
  echo "a folder of another user: left out, since only root can make one"
  rm -r tensorhub-guest.strange
fi
touch -h -d '10 minutes ago' tensorhub-guest.*
exec {lock}<tensorhub-guest.running/lock
flock "$lock"

wrong=0
expect() { "${@:2}" || { echo "wrong: $1" && wrong=1; }; }
cd "$scratch/clone"
status=0
TMPDIR=$scratch/temporary TENSORHUB_GUEST_CACHE=$scratch/cache TENSORHUB_UML='' \
  "$here/guest" --devices none true >"$scratch/output" 2>&1 || status=$?
expect "without a kernel in its cache, the guest is skipped: $status, $(<"$scratch/output")" [ "$status" -eq 77 ]
expect "the present folder has lost its files" [ -e "$scratch/clone/folder/file" ]
expect "the folder behind a link has lost its files" [ -e "$scratch/elsewhere/file" ]
expect "a link of another user was followed" [ ! -e "$scratch/made" ]
cd "$scratch/temporary"
expect "the folder of a killed run is still there" [ ! -e tensorhub-guest.killed ]
expect "the folder of a run that goes on was removed" [ -e tensorhub-guest.running/lock ]
exit $wrong
