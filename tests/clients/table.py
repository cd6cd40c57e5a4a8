"""The page that a run writes."""


def page(outcomes, allowed) -> str:
    lines = [
        "# Clients",
        "",
        "Written by `make test-clients`: real clients ask a byte-logging origin the same things directly and through",
        "ota-pacer, with nothing set but what `ota-pacer env` prints, and the bytes at the origin are compared. Each does",
        "GET, a POST of 100 KiB, a chunked POST, HEAD, a redirect, a gzip answer, a 404, a chunked answer, and a series",
        "on one connection.",
        "",
        "| Client | Version | To do besides the environment | At the origin |",
        "|---|---|---|---|",
    ]
    lines += [f"| {o.client.name} | {o.version or '–'} | {o.client.needs} | {verdict(o)} |" for o in outcomes]
    everywhere = [entry for entry in allowed if entry.clients == "*"]
    used = [entry for entry in allowed if any(entry in outcome.allowed for outcome in outcomes)]
    lines += ["", "What may differ with every client (`tests/clients/allowed.txt`):", "", *reasons(everywhere)]
    lines += ["", "What differs with some:", "", *reasons(entry for entry in used if entry not in everywhere)]
    return "\n".join(lines) + "\n" + BEYOND


BEYOND = """
## What the environment does not reach

Code that arranges its connections itself goes past the proxy without a word; `ota-pacer doctor` tells it for the client
that comes with a runtime, and `ota_pacer_requests_total` for an application.

- Node: `NODE_USE_ENV_PROXY` holds for `fetch` and the global agents. An agent of the program's own needs
  `new https.Agent({ proxyEnv: process.env })`, and code that passes its own `ca` does not see `NODE_EXTRA_CA_CERTS`.
- Python: aiohttp without `trust_env=True`, urllib3 without a `ProxyManager`, httpx and requests with `trust_env` off.
- PHP: streams and SoapClient, which take the proxy from their options alone.
- Java: an `HttpClient` with a `ProxySelector` of its own; Apache's without `useSystemProperties()`.
- Go: a `Transport` without `Proxy: http.ProxyFromEnvironment`, and everything at `localhost`.
- Ruby: hosts that resolve to a loopback address.

What takes a base URL can ask the `gateway` for `/https/HOST/path` instead, as the last rows of the table do.
"""


def reasons(entries) -> list[str]:
    told: dict[str, list[str]] = {}
    for entry in entries:
        told.setdefault(entry.mark, []).append(entry.reason)
    return [f"- **{mark}**: {' '.join(dict.fromkeys(texts))}" for mark, texts in told.items()]


def verdict(outcome) -> str:
    if outcome.skipped:
        return f"skipped: {outcome.skipped}"
    if outcome.failures:
        return "**differs**"
    marks = ", ".join(dict.fromkeys(entry.mark for entry in outcome.allowed if entry.clients != "*"))
    return f"the same but for {marks}" if marks else "the same"
