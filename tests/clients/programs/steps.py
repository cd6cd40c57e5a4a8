"""What the Python programs share: the payload, and the line that each step prints."""

import hashlib
import os

ORIGIN = os.environ["ORIGIN"]
PAYLOAD = b"0123456789abcdef" * 6400
SERIES = 5


def pieces():
    """The payload in parts, so that no client can know its length."""
    for start in range(0, len(PAYLOAD), 10240):
        yield PAYLOAD[start : start + 10240]


def report(step: str, status: int, body: bytes) -> None:
    print(step, status, len(body), hashlib.sha256(body).hexdigest(), flush=True)
