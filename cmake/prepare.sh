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
    fail "these packages could not be installed: ${missing[*]}. Is there a network, and a package source of Debian 12 or 13?"
}

# What ccache keeps serves every clone, wherever it lies. It must compare whole headers (CCACHE_DEPEND), not what the
# preprocessor makes of them: g++ takes a header for the one that a precompiled header has read only if their text is the
# same, comments and all, so a kept precompiled header whose comments are older ends in "redefinition of ...".
export CCACHE_BASEDIR="$PWD" CCACHE_NOHASHDIR=1 CCACHE_SLOPPINESS=pch_defines,time_macros CCACHE_DEPEND=1

# python_venv: build/venv with what the Python package is built and tested with, and the options to build it; false,
# with a line, if it cannot be had. Nothing is fetched twice.
configure_options=()
python_venv() {
  local stamp=build/venv/installed
  if ! cmp -s python/requirements.txt "$stamp"; then
    say "making build/venv"
    rm -rf build/venv
    { python3 -m venv build/venv && build/venv/bin/pip install -q -r python/requirements.txt; } >build/venv.log 2>&1 ||
      { say "the Python package is left out: $(tail -n 1 build/venv.log)"; return 1; }
    cp python/requirements.txt "$stamp"
  fi
  configure_options=(-DTENSORHUB_BUILD_PYTHON=ON "-DPython_EXECUTABLE=$PWD/build/venv/bin/python")
}

# build <preset> [<target>...]: configures if needed, then builds all, or the targets.
build() {
  local preset=$1 targets=()
  shift
  [ $# -eq 0 ] || targets=(--target "$@")
  say "configuring build/$preset"
  cmake --preset "$preset" "${configure_options[@]}" >"build-$preset.log" 2>&1 ||
    { cat "build-$preset.log"; rm -f "build-$preset.log"; fail "cmake could not configure preset '$preset'"; }
  rm -f "build-$preset.log"
  say "building build/$preset"
  local memory= # clang++ on huge pages takes nine tenths of the time (two files at once, medians of 6); g++ a little more
  [[ $preset != @(asan|tsan|clang|fuzz) ]] || memory=glibc.malloc.hugetlb=1
  GLIBC_TUNABLES=$memory cmake --build --preset "$preset" "${targets[@]}" -- -k 0 || fail "preset '$preset' does not build"
}

# Says which GPU there is; false, with a line, if there is none.
gpu_is_here() {
  if command -v nvidia-smi >/dev/null && nvidia-smi -L 2>/dev/null | grep -q '^GPU'; then
    nvidia-smi --query-gpu=name,driver_version,memory.total --format=csv,noheader
  else
    say "there is no GPU here (nvidia-smi names none): what needs one is skipped and says so"
    return 1
  fi
}

base_packages=(g++ cmake ninja-build libzmq3-dev cppzmq-dev libxxhash-dev libsodium-dev nlohmann-json3-dev)
