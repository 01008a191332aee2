# Sourced by examples/grpo/run and examples/ray_rollouts/run.
# shellcheck shell=bash

# grpo_environment <package>...: build/grpo/venv with these packages of PyPI and with this one. Sets `python`.
grpo_environment() {
  need_packages "${base_packages[@]}" python3-dev python3-venv
  local venv=build/grpo/venv package
  [ -e $venv/bin/python ] || python3 -m venv $venv
  for package in "$@"; do
    [ ! -e "$venv/has.$package" ] || continue
    say "installing $package into build/grpo"
    $venv/bin/pip install -q "$package"
    touch "$venv/has.$package"
  done
  say "installing this package"
  $venv/bin/pip install -q --config-settings=build-dir=build/grpo/wheel .
  python=$venv/bin/python
}
