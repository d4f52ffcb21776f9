# Sourced by dist.sh and test_dist.sh: interpreters of this machine by their version.
usable() {  # usable PYTHON MINOR: a CPython 3.MINOR with its headers
  "$1" -c "import os, sys, sysconfig
sys.exit(sys.version_info[:2] != (3, $2) or sys.implementation.name != 'cpython'
         or not os.path.exists(sysconfig.get_path('include') + '/Python.h'))" 2>/dev/null
}
find_python() {  # find_python MINOR: prints one, or nothing
  local candidate
  for candidate in python3."$1" python3 "${PYENV_ROOT:-$HOME/.pyenv}"/versions/3."$1".*/bin/python3 \
      build/dist-pythons/cpython-3."$1".*/bin/python3; do
    if usable "$candidate" "$1"; then
      "$candidate" -c 'import sys; print(sys.executable)'  # behind a shim of pyenv, too
      return
    fi
  done
}
