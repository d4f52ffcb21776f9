# Sourced by scripts that need system packages: need ... for each, then install_missing.
missing=()
need() {  # need PACKAGE CHECK...: the package is missing when the check fails
  local package=$1
  shift
  "$@" >/dev/null 2>&1 || missing+=("$package")
}
as_root() { if [ "$(id -u)" = 0 ]; then "$@"; else sudo -n "$@"; fi; }
install_missing() {  # install_missing WHO: installs as root or by sudo, else says what to type
  [ ${#missing[@]} -gt 0 ] || return 0
  local install="apt-get install -y --no-install-recommends ${missing[*]}"
  if ! command -v apt-get >/dev/null; then
    echo "$1: missing, by their Debian names: ${missing[*]}" >&2
    exit 1
  elif ! as_root true 2>/dev/null; then
    echo "$1: some system packages are missing. Type this, then try again:" >&2
    echo "  sudo $install" >&2
    exit 1
  fi
  echo "$1: installing ${missing[*]}"
  as_root apt-get update -qq
  # shellcheck disable=SC2086
  as_root env DEBIAN_FRONTEND=noninteractive $install >/dev/null
}
