#!/bin/sh
# The curl tool: one process a step, the series in one.
set -u
body=$(mktemp)
trap 'rm -f "$body" "$body.payload"' EXIT
i=0
while [ $i -lt 100 ]; do
    printf '%01024d' "$i"
    i=$((i + 1))
done > "$body.payload"

report() {
    echo "$1 $2 $(wc -c < "$body") $(sha256sum < "$body" | cut -d' ' -f1)"
}

step() {
    name=$1
    path=$2
    shift 2
    : > "$body"
    status=$(curl -sS --max-time 20 -o "$body" -w '%{http_code}' "$@" "$ORIGIN$path")
    report "$name" "$status"
}

step get /get
step post /echo --data-binary "@$body.payload" -H 'Content-Type: application/xml'
step chunked /echo -X POST -T - < "$body.payload"
# Its head goes where a body would, and tells of the proxy.
: > "$body"
report head "$(curl -sS --max-time 20 -o /dev/null -w '%{http_code}' --head "$ORIGIN/head")"
step redirect /redirect -L
step gzip /gzip --compressed
step missing /missing
step stream /stream
step series '/series/[0-4]'
