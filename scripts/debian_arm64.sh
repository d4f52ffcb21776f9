# Sourced by test_aarch64.sh and test_dist.sh.
# unpack_arm64 FOLDER PACKAGE...: packages of Debian's arm64, from the archive this machine uses, unpacked
# into FOLDER, once. No root needed, nothing of the machine's own is touched.
unpack_arm64() {
  local folder=$1 apt=$1-apt deb
  shift
  if [ "$(cat "$folder/packages" 2>/dev/null)" = "$*" ]; then return; fi
  command -v apt-get >/dev/null || {
    echo "the arm64 packages $* come from Debian's archive, by apt-get" >&2
    exit 1
  }
  rm -rf "$folder" "$apt"
  mkdir -p "$folder" "$apt"/{lists/partial,cache/archives/partial,debs}
  : >"$apt/status"
  cat >"$apt/apt.conf" <<CONF
APT::Architecture "arm64";
APT::Architectures { "arm64"; };
APT::Sandbox::User "$(id -un)";
Dir::State "$apt";
Dir::State::status "$apt/status";
Dir::Cache "$apt/cache";
CONF
  APT_CONFIG=$apt/apt.conf apt-get update -qq
  (cd "$apt/debs" && APT_CONFIG=$apt/apt.conf apt-get download -qq "$@")
  for deb in "$apt"/debs/*.deb; do dpkg-deb -x "$deb" "$folder"; done
  rm -r "$apt"
  echo "$*" >"$folder/packages"
}
