# Sourced by the other scripts: makes .venv, installs the project, and says what it does. (scripts/test-oldest has it
# make another environment, from another list of versions.)
# Needs Python 3.11 or newer and nothing else. Uses uv where it is installed. A second run finds all done.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

find_python() {
  for candidate in "${PYTHON:-}" python3 python3.13 python3.12 python3.11 python; do
    if [ -n "$candidate" ] && "$candidate" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
      command -v "$candidate"
      return
    fi
  done
  echo "Expected Python 3.11 or newer on the path, got none; install it or set PYTHON." >&2
  exit 2
}

# Temporary files of tests lie in memory where 4 GB of it are free in /dev/shm, 12 GB in all, and programs may run from
# there: many tests write files that must reach the disk, and wait.
keep_temporary_files_in_memory() {
  local free_there free_in_all directory
  free_there=$(df -Pk /dev/shm 2>/dev/null | awk 'NR == 2 {print $4}')
  free_in_all=$(awk '/^MemAvailable/ {print $2}' /proc/meminfo 2>/dev/null)
  if [ -n "${TMPDIR:-}" ] || [ "${free_there:-0}" -lt 4000000 ] || [ "${free_in_all:-0}" -lt 12000000 ]; then
    return
  fi
  directory=$(mktemp -d /dev/shm/dpswd-XXXXXX) || return 0
  printf '#!/bin/sh\n' >"$directory/program"
  chmod +x "$directory/program"
  if "$directory/program" 2>/dev/null; then
    rm "$directory/program"
    export TMPDIR="$directory"
    trap 'rm -rf "$TMPDIR"' EXIT
  else
    rm -r "$directory"
  fi
}

venv="${DPSWD_VENV:-.venv}"
versions="${DPSWD_CONSTRAINTS:-constraints.txt}"
extras="${DPSWD_EXTRAS:-dev,docs}"
stamp="$venv/installed"
wanted=$(cat pyproject.toml "$versions" | cksum)
if [ "$(cat "$stamp" 2>/dev/null || true)" != "$wanted" ]; then
  python=$(find_python)
  echo "Installing into $venv (once; torch is large, this takes some minutes) ..." >&2
  if command -v uv >/dev/null; then
    [ -x "$venv/bin/python" ] || uv venv --quiet --python "$python" "$venv"
    uv pip install --quiet --python "$venv/bin/python" --constraint "$versions" --editable ".[$extras]"
  else
    [ -x "$venv/bin/python" ] || "$python" -m venv "$venv"
    "$venv/bin/python" -m pip install --quiet --disable-pip-version-check --constraint "$versions" --editable ".[$extras]"
  fi
  echo "$wanted" > "$stamp"
fi
export PATH="$PWD/$venv/bin:$PATH"
