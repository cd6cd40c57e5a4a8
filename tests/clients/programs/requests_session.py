"""requests; with `strict` as argument under VERIFY_X509_STRICT, which is Python 3.13's default."""

import os
import ssl
import sys

import requests
from requests.adapters import HTTPAdapter

from steps import ORIGIN, PAYLOAD, SERIES, pieces, report


class Strict(HTTPAdapter):
    """Verifies as Python 3.13 does."""

    def context(self):
        context = ssl.create_default_context(cafile=os.environ["REQUESTS_CA_BUNDLE"])
        context.verify_flags |= ssl.VERIFY_X509_STRICT
        return context

    def init_poolmanager(self, *args, **options):
        super().init_poolmanager(*args, ssl_context=self.context(), **options)

    def proxy_manager_for(self, proxy, **options):
        return super().proxy_manager_for(proxy, ssl_context=self.context(), **options)

    def build_connection_pool_key_attributes(self, request, verify, cert=None):
        # requests names the CA file here again, which would load it without the flag.
        host, pool = super().build_connection_pool_key_attributes(request, verify, cert)
        pool.pop("ca_certs", None)
        return host, pool

    def cert_verify(self, *_):
        pass


session = requests.Session()
if "strict" in sys.argv:
    session.mount("https://", Strict())


def step(name, method, path, **options):
    answer = session.request(method, ORIGIN + path, timeout=20, **options)
    report(name, answer.status_code, answer.content)


step("get", "GET", "/get")
step("post", "POST", "/echo", data=PAYLOAD)
step("chunked", "POST", "/echo", data=pieces())
step("head", "HEAD", "/head")
step("redirect", "GET", "/redirect")
step("gzip", "GET", "/gzip")
step("missing", "GET", "/missing")
step("stream", "GET", "/stream")
for number in range(SERIES):
    step("series", "GET", f"/series/{number}")
