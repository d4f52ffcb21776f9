#!/usr/bin/env bash
# Runs tests/dist on what `make dist` left in dist/. The x86_64 wheels run on every Python found here;
# those of aarch64 on qemu, with Debian's arm64 C library and Python. No root needed but for qemu.
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/pythons.sh
. scripts/debian_arm64.sh

die() {
  echo "test-dist: $*" >&2
  exit 1
}
compgen -G 'dist/*.whl' >/dev/null || die "no wheels in dist/: make dist"
. scripts/apt_packages.sh
need qemu-user-static command -v qemu-aarch64-static
install_missing test-dist
command -v apt-get >/dev/null || die "the arm64 Python comes from Debian's archive, by apt-get"
scripts/side_venv.sh dist scripts/dist_test_requirements.txt
python=.venv-dist/bin/python
work=$PWD/build/dist-test
mkdir -p "$work"

# --- NumPy for each interpreter: the tests themselves install offline -----------------------------
numpy_for() {  # numpy_for MINOR PLATFORM
  local version=2.4.6
  [ "$1" -gt 10 ] || version=2.2.6
  compgen -G "$work/numpy/numpy-$version-cp3$1-cp3$1-*$2.whl" >/dev/null ||
    "$python" -m pip download -q --disable-pip-version-check --no-deps --only-binary :all: -d "$work/numpy" \
      --python-version "3.$1" --platform "manylinux_2_28_$2" --platform "manylinux_2_27_$2" \
      --platform "manylinux2014_$2" "numpy==$version"
}
pythons=()
for minor in 10 11 12 13 14; do
  found=$(find_python $minor)
  if [ -z "$found" ]; then
    echo "test-dist: no Python 3.$minor here, so none is tested"
    continue
  fi
  pythons+=(--wheel-python "$found")
  numpy_for $minor x86_64
done
numpy_for 11 aarch64

# --- an arm64 Debian 12 with Python, unpacked -----------------------------------------------------
arm=$work/aarch64
unpack_arm64 "$arm" libc6 libgcc-s1 libstdc++6 zlib1g libexpat1 libffi8 libssl3 libbz2-1.0 liblzma5 \
  python3.11-minimal libpython3.11-minimal libpython3.11-stdlib

timeout --kill-after=10 1800 "$python" -m pytest -q -s tests/dist "${pythons[@]}" --arm-root "$arm" \
  --numpy-wheels "$work/numpy"
