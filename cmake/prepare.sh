# Sourced by tests/run, examples/run and bench/run: says what happens, and installs what is missing.
# shellcheck shell=bash

say() { printf '== %s\n' "$*"; }
fail() { printf 'error: %s\n' "$*" >&2; exit 1; }

# need_packages <package>...: Debian packages; installed ones cost nothing, so a second run needs no network.
need_packages() {
  local missing=() package
  command -v dpkg-query >/dev/null ||
    { say "this is no Debian system: these packages (or their equals) must be there: $*"; return 0; }
  for package in "$@"; do
    [ "$(dpkg-query -W -f='${db:Status-Status}' "$package" 2>/dev/null)" = installed ] || missing+=("$package")
  done
  [ ${#missing[@]} -eq 0 ] && return 0
  local as_root=()
  if [ "$(id -u)" -ne 0 ]; then
    command -v sudo >/dev/null ||
      fail "missing packages: ${missing[*]}; install them as root (apt-get install ${missing[*]}) and run this again"
    as_root=(sudo)
  fi
  say "installing: ${missing[*]}"
  local install=("${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends -qq)
  "${install[@]}" "${missing[@]}" >/dev/null 2>&1 && return 0
  "${as_root[@]}" apt-get update -qq || say "the package lists could not be renewed; trying with the present ones"
  "${install[@]}" "${missing[@]}" ||
    fail "these packages could not be installed: ${missing[*]}. Is there a network, and a Debian 12 package source?"
}

# What ccache keeps serves every clone, wherever it lies.
export CCACHE_BASEDIR="$PWD" CCACHE_NOHASHDIR=1

# build <preset>: configures if needed, then builds.
build() {
  say "configuring build/$1"
  cmake --preset "$1" >"build-$1.log" 2>&1 || { cat "build-$1.log"; rm -f "build-$1.log"; fail "cmake could not configure preset '$1'"; }
  rm -f "build-$1.log"
  say "building build/$1"
  cmake --build --preset "$1" -- -k 0 || fail "preset '$1' does not build"
}

base_packages=(g++ cmake ninja-build libzmq3-dev cppzmq-dev libcereal-dev libxxhash-dev nlohmann-json3-dev)
