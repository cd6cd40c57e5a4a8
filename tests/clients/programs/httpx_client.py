"""httpx."""

import httpx

from steps import ORIGIN, PAYLOAD, SERIES, pieces, report

client = httpx.Client(timeout=20, follow_redirects=True)


def step(name, method, path, **options):
    answer = client.request(method, ORIGIN + path, **options)
    report(name, answer.status_code, answer.content)


step("get", "GET", "/get")
step("post", "POST", "/echo", content=PAYLOAD)
step("chunked", "POST", "/echo", content=pieces())
step("head", "HEAD", "/head")
step("redirect", "GET", "/redirect")
step("gzip", "GET", "/gzip")
step("missing", "GET", "/missing")
step("stream", "GET", "/stream")
for number in range(SERIES):
    step("series", "GET", f"/series/{number}")
