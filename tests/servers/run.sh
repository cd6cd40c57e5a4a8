#!/usr/bin/env bash
# The limiter on other servers than the system's, which `make test` uses: the scripts against their model, every way of
# failing, Sentinel and Cluster, and a fleet of proxies in a storm of throttle answers. `run.sh DIR` takes the servers that
# install.sh put there, and those whose paths are in OTA_PACER_TEST_SERVERS, separated by colons. Lists which passed.
set -euo pipefail
shopt -s nullglob

servers=()
for package in "$1"/*/; do
    servers+=("$(find "$package" -name '*-server' -size +1M -print -quit)")
done
IFS=: read -ra named <<<"${OTA_PACER_TEST_SERVERS:-}"
servers+=("${named[@]}")
if ((${#servers[@]} == 0)); then
    echo 'no server to test' >&2
    exit 1
fi

cd "$(dirname "$0")/../.."
export OTA_PACER_MODEL_STEPS=${STEPS:-10000}
tests=(limiter_script limiter::on_redis redis_faults redis_deployments fleet_storm fleet_leases::places)
results=()
status=0
for server in "${servers[@]}"; do
    name="$(basename "$server") $("$server" --version | sed -E 's/.* v=([^ ]+).*/\1/')"
    printf '== %s\n' "$name"
    # None of these servers is built with TLS.
    skipped=(--skip redis_deployments::tls)
    # While it loads it answers once in 2 MB, which it cannot be told to do more often.
    [[ $name != 'redis-server 6.'* ]] || skipped+=(--skip still_loading)
    if OTA_PACER_TEST_SERVER=$server cargo test --locked --test it -- --test-threads=4 "${skipped[@]}" "${tests[@]}"; then
        results+=("passed: $name")
    else
        results+=("FAILED: $name")
        status=1
    fi
done
printf '%s\n' "${results[@]}"
exit "$status"
