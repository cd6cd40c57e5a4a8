"""urllib3 alone. It reads no proxy from the environment: one line of code names it."""

import os

import urllib3

from steps import ORIGIN, PAYLOAD, SERIES, pieces, report

proxy = os.environ.get("https_proxy")
pool = urllib3.ProxyManager(proxy) if proxy else urllib3.PoolManager()


def step(name, method, path, **options):
    answer = pool.request(method, ORIGIN + path, timeout=20, **options)
    report(name, answer.status, answer.data)


step("get", "GET", "/get")
step("post", "POST", "/echo", body=PAYLOAD)
step("chunked", "POST", "/echo", body=pieces())
step("head", "HEAD", "/head")
step("redirect", "GET", "/redirect")
step("gzip", "GET", "/gzip", headers={"Accept-Encoding": "gzip"})
step("missing", "GET", "/missing")
step("stream", "GET", "/stream")
for number in range(SERIES):
    step("series", "GET", f"/series/{number}")
