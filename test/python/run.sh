#!/usr/bin/env bash
# Runs the published Python client, unmodified, against the broker at QUEEN_URL: test/python/run.sh [VERSION...]
#
# Each version lives in a virtual environment of its own under .venv beside this script (PYTHON_CLIENT_CACHE moves it), so a
# second run installs nothing.
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
cache=${PYTHON_CLIENT_CACHE:-$here/.venv}
python=${PYTHON:-python3}
: "${QUEEN_URL:?set it to the address of a running broker}"

[ $# -gt 0 ] || set -- 2.6.0 0.13.0

if ! "$python" -c 'import venv, ensurepip' 2>/dev/null; then
  echo "run.sh: $python cannot make virtual environments; on Debian install the package python3-venv" >&2
  exit 2
fi

status=0
for version in "$@"; do
  env=$cache/$version
  if [ ! -e "$env/ready" ]; then
    rm -rf "$env"
    mkdir -p "$cache"
    "$python" -m venv "$env"
    "$env/bin/pip" install --quiet --disable-pip-version-check "queen-mq==$version"
    touch "$env/ready"
  fi
  # Python buffers pipes by the block; CI should see each line as it happens.
  PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1 "$env/bin/python" "$here/client_test.py" || status=1
done
exit $status
