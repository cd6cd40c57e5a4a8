#!/bin/sh
# GNU wget, which cannot send chunks.
set -u
body=$(mktemp)
trap 'rm -f "$body" "$body.payload" "$body.log"' EXIT
i=0
while [ $i -lt 100 ]; do
    printf '%01024d' "$i"
    i=$((i + 1))
done > "$body.payload"

step() {
    name=$1
    shift
    : > "$body"
    wget -S -T 20 -t 1 --content-on-error -O "$body" "$@" 2> "$body.log"
    status=$(sed -n 's|^ *HTTP/1.[01] \([0-9]*\).*|\1|p' "$body.log" | tail -1)
    [ -n "$status" ] || cat "$body.log" >&2
    echo "$name ${status:-failed} $(wc -c < "$body") $(sha256sum < "$body" | cut -d' ' -f1)"
}

step get "$ORIGIN/get"
step post --post-file="$body.payload" "$ORIGIN/echo"
step head --spider "$ORIGIN/head"
step redirect "$ORIGIN/redirect"
step gzip --compression=gzip "$ORIGIN/gzip"
step missing "$ORIGIN/missing"
step stream "$ORIGIN/stream"
step series "$ORIGIN/series/0" "$ORIGIN/series/1" "$ORIGIN/series/2" "$ORIGIN/series/3" "$ORIGIN/series/4"
