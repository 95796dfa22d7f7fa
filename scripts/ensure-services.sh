#!/usr/bin/env bash
# Makes sure that programs the tests need are installed: scripts/ensure-services.sh NAME...
#
# On Debian and its relatives, as root, whatever is missing comes from the distribution's packages. Elsewhere a missing
# program is reported; PostgreSQL then comes as the embedded binaries that the launcher downloads by itself. With CI=true
# a program that is missing in the end is a failure: a test that could not run must not look like one that passed.
set -euo pipefail

# have NAME: is the program usable?
have() {
  case $1 in
    cc) command -v "$(go env CC 2>/dev/null || echo gcc)" >/dev/null 2>&1 ;;
    # The server's programs are outside PATH on Debian.
    postgresql) command -v postgres >/dev/null 2>&1 || compgen -G '/usr/lib/postgresql/*/bin/postgres' >/dev/null ;;
    redis) command -v redis-server >/dev/null 2>&1 ;;
    psql | curl | jq) command -v "$1" >/dev/null 2>&1 ;;
    nginx | pgbouncer) command -v "$1" >/dev/null 2>&1 || [ -x "/usr/sbin/$1" ] ;;
    venv) python3 -c 'import ensurepip, venv' >/dev/null 2>&1 ;;
    yaml) python3 -c 'import yaml' >/dev/null 2>&1 || /usr/bin/python3 -c 'import yaml' >/dev/null 2>&1 ;;
    *) echo "ensure-services: unknown name $1" >&2; exit 2 ;;
  esac
}

# packages NAME: the Debian packages that bring it.
packages() {
  case $1 in
    cc) echo gcc libc6-dev ;;
    postgresql) echo postgresql ;;
    redis) echo redis-server ;;
    psql) echo postgresql-client ;;
    venv) echo python3 python3-venv python3-pip ;;
    yaml) echo python3 python3-yaml ;;
    *) echo "$1" ;;
  esac
}

missing=()
for name in "$@"; do
  have "$name" || missing+=("$name")
done
[ ${#missing[@]} -eq 0 ] && exit 0

if command -v apt-get >/dev/null 2>&1 && [ "$(id -u)" -eq 0 ]; then
  list=()
  for name in "${missing[@]}"; do
    read -ra found <<<"$(packages "$name")"
    list+=("${found[@]}")
  done
  echo "installing ${list[*]}"
  log=$(mktemp)
  trap 'rm -f "$log"' EXIT
  if ! { apt-get update -q && DEBIAN_FRONTEND=noninteractive apt-get install -y -q --no-install-recommends "${list[@]}"; } \
    </dev/null >"$log" 2>&1; then
    tail -n 20 "$log" >&2
  fi
fi

status=0
for name in "${missing[@]}"; do
  have "$name" && continue
  case $name in
    postgresql) echo "no PostgreSQL server found: the launcher will download one for this user" >&2 ;;
    redis) echo "no redis-server found: tests use the in-process one only" >&2 ;;
    nginx | pgbouncer) echo "no $name found (Debian: $(packages "$name")): what runs a whole installation will fail" >&2 ;;
    cc) echo "the race detector needs a C compiler; without one run: make test TEST_FLAGS=" >&2; status=1 ;;
    *) echo "missing: $name (Debian: $(packages "$name"))" >&2; status=1 ;;
  esac
  [ "${CI:-}" != true ] || status=1
done
exit $status
