#!/usr/bin/env bash
# Runs the snippets of README.md, in order and in one shell, against the broker at QUEEN_URL (default
# http://localhost:6632) and, for SQL, the database at DATABASE_URL.
#
# A fence after a line `<!-- test -->` is run: `sh` by the shell, `sql` by psql. A fence after a line `<!-- output -->`
# is what the snippet before it must print, loosely: JSON has to be contained in the answer; of other text each line has
# to appear, in order, whatever the spacing; `…` stands for anything.
set -euo pipefail
shopt -s inherit_errexit

readme=${1:-$(dirname "${BASH_SOURCE[0]}")/../README.md}
QUEEN_URL=${QUEEN_URL:-http://localhost:6632}
export QUEEN_URL=${QUEEN_URL%/}

work=$(mktemp -d)
current='' line=''
finish() {
  local status=$?
  if [ $status -ne 0 ] && [ -n "$current" ]; then
    {
      echo "FAIL: $readme:$line"
      cat "$work/$current.code"
      echo "--- it printed:"
      cat "$work/$current.out" 2>/dev/null
    } >&2
  fi
  rm -rf "$work"
  exit $status
}
trap finish EXIT

# Snippets are written for a reader's terminal; here every HTTP error and every SQL error has to stop the run.
curl() { command curl -fS "$@"; }
psql() { command psql -X -v ON_ERROR_STOP=1 "$@"; }

# N.code is a snippet, N.kind its language, N.line its place, N.want and N.wantkind what it must print.
awk -v dir="$work" '
  /^```/ {
    if (file != "") { close(file); file = ""; next }
    kind = substr($0, 4)
    if (role == "test") {
      n++
      print kind > (dir "/" n ".kind"); close(dir "/" n ".kind")
      print NR + 1 > (dir "/" n ".line"); close(dir "/" n ".line")
      file = dir "/" n ".code"
    } else if (role == "output") {
      print kind > (dir "/" n ".wantkind"); close(dir "/" n ".wantkind")
      file = dir "/" n ".want"
    } else { file = "/dev/null" }
    role = ""
    next
  }
  file != "" { print > file; next }
  /^<!-- test -->$/   { role = "test"; next }
  /^<!-- output -->$/ { role = "output"; next }
  NF > 0 { role = "" }
  END { print n + 0 > (dir "/count") }
' "$readme"

# contains WANT GOT: is the JSON of file WANT a part of that of file GOT?
contains() {
  jq -en --slurpfile want "$1" --slurpfile got "$2" '
    def fits($w; $g):
      if ($w | type) == "object" then
        ($g | type) == "object" and all($w | keys[]; . as $k | ($g | has($k)) and fits($w[$k]; $g[$k]))
      elif ($w | type) == "array" then
        ($g | type) == "array" and ($w | length) == ($g | length)
        and all(range($w | length); . as $i | fits($w[$i]; $g[$i]))
      elif ($w | type) == "string" and ($w | contains("…")) then
        ($w | split("…")) as $parts
        | ($g | type) == "string" and ($g | startswith($parts[0]) and endswith($parts[-1]))
      else $w == $g end;
    fits($want; $got)' >/dev/null
}

squeeze() { sed -E 's/[[:space:]]+/ /g; s/^ //; s/ $//' "$1" | grep -v '^$' || true; }

# lines WANT GOT: does each line of WANT appear in GOT, in order?
lines() {
  local want got pattern
  exec {in}< <(squeeze "$2")
  while IFS= read -r want; do
    pattern=$(printf '%s' "$want" | sed 's/[][*?\\]/\\&/g; s/…/*/g')
    while :; do
      IFS= read -r got <&"$in" || { echo "missing line: $want" >&2; return 1; }
      # shellcheck disable=SC2053 # a pattern on purpose
      [[ $got == $pattern ]] && break
    done
  done < <(squeeze "$1")
  exec {in}<&-
}

count=$(cat "$work/count")
[ "$count" -gt 0 ] || { echo "no snippet to run in $readme" >&2; exit 1; }
for current in $(seq "$count"); do
  line=$(cat "$work/$current.line")
  case $(cat "$work/$current.kind") in
    sh)
      sed -E "s#(http://)?localhost:6632#$QUEEN_URL#g" "$work/$current.code" >"$work/$current.run"
      # shellcheck disable=SC1090 # in this shell, so that variables last from one snippet to the next
      source "$work/$current.run" >"$work/$current.out"
      ;;
    sql) psql "${DATABASE_URL:?is needed for the SQL snippets}" -f "$work/$current.code" >"$work/$current.out" ;;
    *) echo "only sh and sql snippets can be tested" >&2; exit 1 ;;
  esac
  [ -e "$work/$current.want" ] || continue
  if [ "$(cat "$work/$current.wantkind")" = json ]; then
    contains "$work/$current.want" "$work/$current.out" || { cat "$work/$current.want" >&2; false; }
  else
    lines "$work/$current.want" "$work/$current.out"
  fi
done
current=''
echo "$count passed, 0 failed"
