# Sourced by scripts that need more of the system than setup.sh installs.
missing=()
need() {  # need PACKAGE COMMAND: the package is missing where the command is
  command -v "$2" >/dev/null || missing+=("$1")
}
install_missing() {  # install_missing WHO: installs as root or by sudo, else says what to type
  [ ${#missing[@]} -gt 0 ] || return 0
  local install="apt-get install -y --no-install-recommends ${missing[*]}" run
  if ! command -v apt-get >/dev/null; then
    echo "$1: missing, by their Debian names: ${missing[*]}" >&2
    exit 1
  elif [ "$(id -u)" = 0 ]; then
    run=env
  elif command -v sudo >/dev/null && sudo -n true 2>/dev/null; then
    run=sudo
  else
    echo "$1: some system packages are missing. Type this, then try again: sudo $install" >&2
    exit 1
  fi
  $run apt-get update -qq
  # shellcheck disable=SC2086
  DEBIAN_FRONTEND=noninteractive $run $install >/dev/null
}
