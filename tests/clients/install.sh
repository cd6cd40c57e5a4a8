#!/bin/sh
# Puts the clients into DIR: `install.sh DIR TARGET`, TARGET being cargo's. What cannot be had is left out; the run reports it as skipped.
set -u
here=$(cd "$(dirname "$0")" && pwd)
mkdir -p "$1" "$2"
dir=$(cd "$1" && pwd)
log=$dir/install.log
: > "$log"

# COMMAND PACKAGE...: Debian's packages, where the command fails and this is root.
debian() {
    command=$1
    shift
    sh -c "$command" >/dev/null 2>&1 && return
    missing="$missing $*"
}

missing=
debian 'command -v curl' curl
debian 'command -v wget' wget
debian 'command -v openssl' openssl
debian 'command -v go' golang-go
debian 'php -r "curl_init();"' php-cli php-curl
debian 'php -r "new SoapClient(null, [\"location\" => \"a\", \"uri\" => \"b\"]);"' php-cli php-soap
debian 'command -v ruby' ruby
debian 'perl -MLWP::Protocol::https -e 1' libwww-perl liblwp-protocol-https-perl
debian 'command -v java && command -v javac' default-jdk-headless
debian 'command -v npm' npm
if [ -n "$missing" ] && [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
    echo "installing$missing"
    # One by one, so that one that is not to be had takes none with it.
    apt-get update -q >>"$log" 2>&1
    for package in $missing; do
        DEBIAN_FRONTEND=noninteractive apt-get install -qy --no-install-recommends "$package" >>"$log" 2>&1 \
            || echo "cannot install $package: see $log"
    done
fi

if ! cmp -s "$here/requirements.txt" "$dir/python/requirements.txt"; then
    rm -rf "$dir/python"
    python3 -m pip install --quiet --target "$dir/python" -r "$here/requirements.txt" >>"$log" 2>&1 \
        && cp "$here/requirements.txt" "$dir/python/" || echo "cannot install the Python clients: see $log"
fi

if ! cmp -s "$here/package.json" "$dir/package.json"; then
    cp "$here/package.json" "$dir/"
    (cd "$dir" && npm install --no-audit --no-fund --no-package-lock >>"$log" 2>&1) \
        || { echo "cannot install the Node clients: see $log"; rm -f "$dir/package.json"; }
fi

if command -v go >/dev/null && ! { [ "$dir/nethttp" -nt "$here/programs/nethttp.go" ]; }; then
    GOCACHE=$dir/go-cache GO111MODULE=off CGO_ENABLED=0 go build -o "$dir/nethttp" "$here/programs/nethttp.go" >>"$log" 2>&1 \
        || echo "cannot build the Go client: see $log"
fi
manifest=$here/reqwest/Cargo.toml
if cargo build --quiet --locked --manifest-path "$manifest" --target-dir "$2" >>"$log" 2>&1; then
    cp "$2/debug/reqwest-client" "$dir/"
    sed -n '/^name = "reqwest"$/{n;s/.*"\(.*\)"/\1/p;}' "$here/reqwest/Cargo.lock" > "$dir/reqwest-version"
else
    echo "cannot build the Rust client: see $log"
fi
exit 0
