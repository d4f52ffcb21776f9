#!/usr/bin/env bash
# The sdist and, made from it, the wheels of both architectures, in dist/. Compiled by zig's clang
# against glibc 2.28, with zstd, SQLite and the C++ library linked in; the CUDA kernels by nvcc. What is downloaded
# (dist_sources.txt) is checked and kept in build/dist-sources; CMake itself downloads nothing.
set -euo pipefail
cd "$(dirname "$0")/.."

glibc=2.28
python=$PWD/.venv/bin/python
sources=$PWD/build/dist-sources
work=$PWD/build/dist
say() { echo "dist: $*"; }
die() {
  echo "dist: $*" >&2
  exit 1
}
[ "$(uname -m)" = x86_64 ] || die "the zig of scripts/dist_sources.txt runs on x86_64, this is $(uname -m)"

# --- downloads, by their SHA-256 ----------------------------------------------------------------
mkdir -p "$sources"
while read -r sum file requirement; do
  case $sum in '#' | '') continue ;; esac
  if ! echo "$sum  $sources/$file" | sha256sum --check --status 2>/dev/null; then
    say "fetching $requirement"
    rm -f "$sources/$file"
    kind=--no-binary  # of the package alone: what pip builds it with may be wheels
    case $file in *.whl) kind=--only-binary ;; esac
    "$python" -m pip download -q --disable-pip-version-check --no-deps $kind "${requirement%%==*}" -d "$sources" "$requirement"
    echo "$sum  $sources/$file" | sha256sum --check --quiet ||
      die "$file is not the one that scripts/dist_sources.txt names"
  fi
done <scripts/dist_sources.txt

rm -rf dist "$work" build/wheel-x86_64 build/wheel-aarch64
mkdir -p "$work"
export ZIG_GLOBAL_CACHE_DIR=$PWD/build/zig-cache  # its C++ library, compiled on first use
"$python" -m venv "$work/zig"
"$work/zig/bin/python" -m pip install -q --disable-pip-version-check --no-index "$sources"/ziglang-*.whl
zig=$("$work/zig/bin/python" -c 'import os, ziglang; print(os.path.dirname(ziglang.__file__) + "/zig")')
tar -xzf "$sources"/zstandard-*.tar.gz -C "$work"
tar -xzf "$sources"/rotki_sqlite-*.tar.gz -C "$work"

# --- per architecture: compiler, libraries, headers ---------------------------------------------
# The wheels' libraries by CMake's own search: their headers, never the machine's.
header_only() { for name in nlohmann CLI boost; do
  find -L /usr/local/include /usr/include -maxdepth 1 -name $name -print -quit; done; }
cmake_configs() { for name in nlohmann_json CLI11; do
  find -L /usr/local /usr/share /usr/lib -maxdepth 4 -path "*cmake/$name" -print -quit 2>/dev/null; done; }
make_root() {
  local arch=$1 root=$work/$1 tool
  mkdir -p "$root"/{bin,include,lib,share/cmake}
  for tool in cc c++; do
    printf '#!/bin/sh\nexec "%s" %s -target %s-linux-gnu.%s "$@"\n' "$zig" $tool "$arch" $glibc >"$root/bin/$tool"
  done
  for tool in ar ranlib; do
    printf '#!/bin/sh\nexec "%s" %s "$@"\n' "$zig" $tool >"$root/bin/$tool"
  done
  chmod +x "$root"/bin/*
  # shellcheck disable=SC2046
  cp -rL $(header_only) "$root/include"
  # shellcheck disable=SC2046
  cp -rL $(cmake_configs) "$root/share/cmake"

  say "zstd and SQLite for $arch"
  local cc=("$root/bin/cc" -O3 -g0 -DNDEBUG -fPIC -fvisibility=hidden)
  cp "$work"/zstandard-*/zstd/*.h "$root/include"
  "${cc[@]}" -c "$work"/zstandard-*/zstd/zstd.c -o "$root/zstd.o"
  "$root/bin/ar" rcs "$root/lib/libzstd.a" "$root/zstd.o"
  # Its header is in the one source file, too, as C alone and its two variables as definitions.
  {
    printf '#pragma once\n#ifdef __cplusplus\nextern "C" {\n#endif\n'
    sed -n -e 's/^SQLITE_API char/SQLITE_API extern char/' \
      -e '/^\/\*\{14\} Begin file sqlite3\.h /,/^\/\*\{14\} End of sqlite3\.h /p' \
      "$work"/rotki_sqlite-*/sqlite3.c
    printf '#ifdef __cplusplus\n}\n#endif\n'
  } >"$root/include/sqlite3.h"
  "${cc[@]}" -w -DSQLITE_THREADSAFE=1 -DSQLITE_OMIT_LOAD_EXTENSION -DSQLITE_ENABLE_MATH_FUNCTIONS \
    -c "$work"/rotki_sqlite-*/sqlite3.c -o "$root/sqlite3.o"
  "$root/bin/ar" rcs "$root/lib/libsqlite3.a" "$root/sqlite3.o"

  # Debian keeps pyconfig.h apart, by architecture. Both are 64-bit and little-endian: one will do.
  local config
  for config in /usr/include/x86_64-linux-gnu/python3.*/pyconfig.h; do
    [ -e "$config" ] || continue
    local minor
    minor=$(basename "$(dirname "$config")")
    mkdir -p "$root/include/$arch-linux-gnu/$minor"
    cp "$config" "$root/include/$arch-linux-gnu/$minor"
  done
}

# --- per Python: the interpreter with its headers, and an environment that builds ---------------
. scripts/pythons.sh
python_of() {  # python_of MINOR: found, else installed by uv, else an error that says what to do
  local found
  found=$(find_python "$1")
  if [ -z "$found" ]; then
    say "no Python 3.$1 with headers here: asking uv for one" >&2
    "$python" -m pip install -q --disable-pip-version-check uv==0.13.9
    "$python" -m uv python install -q --no-bin --install-dir build/dist-pythons "3.$1" ||
      die "Python 3.$1 with its headers (Python.h) is needed for its wheel, and uv could not fetch it.
  Install it (pyenv install 3.$1, or your distribution's python3.$1-dev), then try again."
    found=$(find_python "$1")
  fi
  echo "$found"
}
pin() { grep "^$1==" scripts/requirements.txt; }
make_environment() {  # make_environment MINOR
  "$(python_of "$1")" -m venv "$work/python-3.$1"
  "$work/python-3.$1/bin/python" -m pip install -q --disable-pip-version-check \
    "$(pin scikit-build-core)" "$(pin nanobind)" typing_extensions wheel==0.45.1
}

# --- sdist, then wheels from what is in it ------------------------------------------------------
SOURCE_DATE_EPOCH=$(git log -1 --format=%ct 2>/dev/null || echo 1767225600)
export SOURCE_DATE_EPOCH
"$python" -m build --sdist --no-isolation -o dist . >"$work/sdist.log" || die "see $work/sdist.log"
tar -xzf dist/trainmon-*.tar.gz -C "$work"
tree=$(echo "$work"/trainmon-*/)

make_wheel() {  # make_wheel ARCH MINOR
  local arch=$1 minor=$2 begin=$SECONDS build=$PWD/build/wheel-$1
  # nvcc does not know zig's clang; the image that it makes has nothing of the host's compiler.
  local options=(--config-settings=cmake.define.TRAINMON_CUDA=ON
    "--config-settings=cmake.define.CMAKE_CUDA_COMPILER=$PWD/build/cuda/nvidia/cu13/bin/nvcc"
    "--config-settings=cmake.define.CMAKE_CUDA_HOST_COMPILER=$(command -v g++)")
  if [ "$arch" != x86_64 ]; then  # what the build itself runs, it takes from the build before
    options+=("--config-settings=cmake.define.TRAINMON_HOST_BUILD=$PWD/build/wheel-x86_64")
    export SETUPTOOLS_EXT_SUFFIX=.cpython-3$minor-$arch-linux-gnu.so
  fi
  rm -f "$build/CMakeCache.txt"  # the libraries stay; what belongs to the interpreter does not
  TRAINMON_TARGET_ROOT=$work/$arch CMAKE_TOOLCHAIN_FILE=$tree/cmake/zig.cmake \
    _PYTHON_HOST_PLATFORM=linux-$arch \
    "$work/python-3.$minor/bin/python" -m pip wheel -q --disable-pip-version-check --no-deps \
    --no-build-isolation -w "$work/plain" --config-settings=build-dir="$build" \
    --config-settings=install.strip=false "${options[@]}" "$tree" \
    >"$work/wheel-$arch-3.$minor.log" 2>&1 || die "see $work/wheel-$arch-3.$minor.log"
  unset SETUPTOOLS_EXT_SUFFIX
  # What zig linked against says what the wheel needs; tests/dist looks whether that is so.
  "$work/python-3.$minor/bin/python" -m wheel tags --remove --platform-tag "manylinux_${glibc/./_}_$arch" \
    "$work"/plain/*"_$arch.whl" >/dev/null
  mv "$work"/plain/*.whl dist
  say "$arch, Python 3.$minor: $((SECONDS - begin)) s"
}

# 3.12 gives the wheel of the stable ABI, which serves all later ones; a later one's headers do, too.
newest=12
for minor in 13 14; do [ -n "$(find_python $newest)" ] || newest=$minor; done
[ -n "$(find_python $newest)" ] || newest=12
for arch in x86_64 aarch64; do make_root $arch; done
for minor in 10 11 $newest; do
  make_environment $minor
  for arch in x86_64 aarch64; do make_wheel $arch $minor; done
done
ls -l dist
say "done in $SECONDS s"
