#!/usr/bin/env bash
# The C++ tests for 64-bit Arm: cross-compiled by Debian's g++-aarch64-linux-gnu, run by qemu.
# Left out: the kill loops, whose programs start another program, which the kernel of this machine
# cannot run. Arguments go to ctest.
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/apt_packages.sh
. scripts/debian_arm64.sh

need g++-aarch64-linux-gnu command -v aarch64-linux-gnu-g++
need qemu-user-static command -v qemu-aarch64-static
install_missing test-aarch64
export TRAINMON_TARGET_ROOT=$PWD/build/aarch64-root
boost=$(apt-cache depends libboost-dev | sed -n 's/.*Depends: \(libboost[0-9.]*-dev\)$/\1/p')  # the headers themselves
unpack_arm64 "$TRAINMON_TARGET_ROOT" libzstd-dev libsqlite3-dev libgtest-dev nlohmann-json3-dev libcli11-dev $boost
cmake --preset aarch64 >/dev/null
cmake --build --preset aarch64
ctest --preset aarch64 --no-tests=error "$@"
