"""urllib.request of the standard library."""

from urllib.error import HTTPError
from urllib.request import Request, urlopen

from steps import ORIGIN, PAYLOAD, SERIES, pieces, report


def step(name, path, **options):
    try:
        with urlopen(Request(ORIGIN + path, **options), timeout=20) as answer:
            report(name, answer.status, answer.read())
    except HTTPError as error:
        report(name, error.code, error.read())


step("get", "/get")
step("post", "/echo", data=PAYLOAD, headers={"Content-Type": "application/xml"})
step("chunked", "/echo", data=pieces(), headers={"Content-Type": "application/xml"})
step("head", "/head", method="HEAD")
step("redirect", "/redirect")
step("gzip", "/gzip", headers={"Accept-Encoding": "gzip"})
step("missing", "/missing")
step("stream", "/stream")
for number in range(SERIES):
    step("series", f"/series/{number}")
