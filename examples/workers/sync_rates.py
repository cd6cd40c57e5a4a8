"""Pushes room availability to an OTA, property by property, and prints what it got as one JSON line.

    OTA_URL=https://supply-xml.booking.com OTA_USER=machine-account OTA_PASSWORD=... python3 sync_rates.py --seconds 60
"""

import argparse
import itertools
import json
import os
import sys
import time
from collections import Counter

import requests

AVAILABILITY = """<?xml version="1.0"?>
<request>
  <hotel_id>{property_id}</hotel_id>
  <room id="{room}"><date value="2027-06-01"><roomstosell>{rooms}</roomstosell></date></room>
</request>
"""


def main():
    options = parse_options()
    session = requests.Session()
    session.auth = (os.environ["OTA_USER"], os.environ["OTA_PASSWORD"])
    session.headers["Content-Type"] = "application/xml"
    url = os.environ["OTA_URL"].rstrip("/") + options.path

    statuses = Counter()
    errors = []
    started = time.monotonic()
    for number in updates(options, started):
        body = AVAILABILITY.format(property_id=1000 + number % options.properties, room=number % 7, rooms=number % 20)
        try:
            response = session.post(url, data=body, timeout=60)
            statuses[response.status_code] += 1
        except requests.RequestException as error:
            errors.append(str(error))

    print(json.dumps({
        "requests": sum(statuses.values()) + len(errors),
        "statuses": statuses,
        "errors": len(errors),
        "first_error": errors[0] if errors else None,
        "seconds": round(time.monotonic() - started, 3),
    }))
    return 0 if set(statuses) == {200} and not errors else 1


def updates(options, started):
    """Numbers the updates to send, until there have been enough or time is up."""
    for number in itertools.count():
        if options.count is not None and number >= options.count:
            return
        if options.seconds is not None and time.monotonic() - started >= options.seconds:
            return
        yield number


def parse_options():
    parser = argparse.ArgumentParser(description="Pushes room availability to an OTA.")
    parser.add_argument("--path", default="/hotels/xml/availability")
    parser.add_argument("--properties", type=int, default=25, help="how many properties take turns")
    parser.add_argument("--count", type=int, help="stop after this many updates")
    parser.add_argument("--seconds", type=float, help="stop after this long")
    options = parser.parse_args()
    if options.count is None and options.seconds is None:
        options.count = options.properties
    return options


if __name__ == "__main__":
    sys.exit(main())
