#!/bin/sh
# Installs a Debian package that `make test` needs, or says what to do where it cannot.
set -eu

package=$1
if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
    apt-get update -q
    DEBIAN_FRONTEND=noninteractive apt-get install -qy --no-install-recommends "$package"
else
    printf '`%s` is not installed\n\nhint: install it with the system'"'"'s package manager, such as: sudo apt-get install %s\n' \
        "$package" "$package" >&2
    exit 1
fi
