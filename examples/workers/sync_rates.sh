#!/bin/sh
# Pushes room availability to an OTA, property by property, and prints each status.
#
#     OTA_URL=https://supply-xml.booking.com OTA_USER=machine-account OTA_PASSWORD=... ./sync_rates.sh 25
set -eu

count=${1:-25}
path=${2:-/hotels/xml/availability}

number=0
while [ "$number" -lt "$count" ]; do
    # The credentials go in by standard input, so that they show in no list of processes.
    printf 'user = "%s:%s"\n' "$OTA_USER" "$OTA_PASSWORD" |
        curl --silent --show-error --config - --output /dev/null --write-out '%{http_code}\n' \
            --header 'Content-Type: application/xml' \
            --data "<request><hotel_id>$((1000 + number))</hotel_id></request>" \
            "${OTA_URL%/}$path"
    number=$((number + 1))
done
