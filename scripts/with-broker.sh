#!/usr/bin/env bash
# Runs a command against a throwaway broker built from this tree: scripts/with-broker.sh COMMAND [ARGS...]
#
# The command finds QUEEN_URL and DATABASE_URL in its environment. Broker and database are gone when it ends.
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
[ $# -gt 0 ] || { echo "usage: with-broker.sh COMMAND [ARGS...]" >&2; exit 2; }

work=$(mktemp -d)
chmod 711 "$work" # PostgreSQL runs as another user when we are root
pid=
cleanup() {
  local status=$?
  trap - EXIT
  if [ -n "$pid" ] && kill -0 "$pid" 2>/dev/null; then
    kill -TERM "$pid"
    for _ in $(seq 150); do kill -0 "$pid" 2>/dev/null || break; sleep 0.1; done
    if kill -0 "$pid" 2>/dev/null; then
      echo "with-broker: the broker did not stop within 15 s" >&2
      kill -KILL "$pid"
      [ $status -ne 0 ] || status=1
    fi
  fi
  [ $status -eq 0 ] || { echo "--- end of the broker's log"; tail -n 40 "$work/log" 2>/dev/null; } >&2
  rm -rf "$work"
  exit $status
}
trap cleanup EXIT
trap 'exit 130' INT TERM

free_port() {
  local port
  while port=$((20000 + RANDOM % 10000)); (exec 3<>"/dev/tcp/127.0.0.1/$port") 2>/dev/null; do :; done
  echo "$port"
}

(cd "$root" && go build -o "$work/queen" ./cmd/queen)
port=$(free_port)
export QUEEN_URL="http://127.0.0.1:$port"

PORT=$port QUEEN_BIND_ADDR=127.0.0.1 \
  "$work/queen" dev --data-dir "$work/data" >"$work/log" 2>&1 </dev/null &
pid=$!

for _ in $(seq 600); do
  kill -0 "$pid" 2>/dev/null || { echo "with-broker: the broker stopped while starting" >&2; exit 1; }
  curl -fsS -o /dev/null "$QUEEN_URL/readyz" 2>/dev/null && ready=1 && break
  sleep 0.1
done
[ "${ready:-}" = 1 ] || { echo "with-broker: not ready after 60 s" >&2; exit 1; }

# `queen dev` tells where its database is.
DATABASE_URL=$(grep -oE -m1 'postgres(ql)?://[^" ]+' "$work/log" || true)
[ -n "$DATABASE_URL" ] || { echo "with-broker: the broker named no database" >&2; exit 1; }
export DATABASE_URL

"$@"
