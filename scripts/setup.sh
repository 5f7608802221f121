# Sourced by scripts/demo and scripts/test: makes .venv, installs the project, and says what it does.
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

stamp=.venv/installed
wanted=$(cat pyproject.toml constraints.txt | cksum)
if [ "$(cat "$stamp" 2>/dev/null || true)" != "$wanted" ]; then
  python=$(find_python)
  echo "Installing into .venv (once; torch is large, this takes some minutes) ..." >&2
  if command -v uv >/dev/null; then
    [ -x .venv/bin/python ] || uv venv --quiet --python "$python" .venv
    uv pip install --quiet --python .venv/bin/python --constraint constraints.txt --editable '.[dev]'
  else
    [ -x .venv/bin/python ] || "$python" -m venv .venv
    .venv/bin/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[dev]'
  fi
  echo "$wanted" > "$stamp"
fi
export PATH="$PWD/.venv/bin:$PATH"
