"""What differs between two series of requests, and which of it is allowed."""

from collections import Counter
from dataclasses import dataclass
from fnmatch import fnmatchcase
from itertools import zip_longest
from pathlib import Path

from origin import Request


@dataclass(frozen=True)
class Allowed:
    """A difference that is allowed, and why."""

    mark: str
    clients: str
    pattern: str
    reason: str

    def covers(self, client: str, difference: str) -> bool:
        """Differences are told with the request they were seen in, which does not matter here."""
        named = difference.partition(": ")[2]
        clients = (pattern.strip() for pattern in self.clients.split(","))
        return fnmatchcase(named, self.pattern) and any(fnmatchcase(client, pattern) for pattern in clients)


def load_allowed(path: Path) -> list[Allowed]:
    lines = (line for line in path.read_text().splitlines() if line.strip() and not line.startswith("#"))
    return [Allowed(*(part.strip() for part in line.split(" | ", 3))) for line in lines]


def differences(direct: list[Request], proxied: list[Request]) -> list[str]:
    """Each as `METHOD PATH: what`, requests compared in the order of their arrival."""
    found = []
    for before, after in zip_longest(direct, proxied):
        request = before or after
        where = f"{request.method} {request.path}"
        if before is None or after is None:
            found.append(f"{where}: request {'lost' if after is None else 'added'}")
            continue
        found += [f"{where}: {what}" for what in between(before, after)]
    return found + connections(direct, proxied)


def between(before: Request, after: Request) -> list[str]:
    line, line_after = (request.head.split(b"\r\n", 1)[0].decode("latin-1") for request in (before, after))
    found = [] if line == line_after else [f"request line `{line}` became `{line_after}`"]
    fields, fields_after = Counter(before.fields()), Counter(after.fields())
    found += [f"- {field}" for field in (fields - fields_after).elements()]
    found += [f"+ {field}" for field in (fields_after - fields).elements()]
    common = fields & fields_after
    if kept(before.fields(), common) != kept(after.fields(), common):
        found.append(f"order of fields became {names(after.fields())} from {names(before.fields())}")
    if before.body != after.body:
        found.append(f"body of {len(before.body)} bytes became {len(after.body)} other bytes")
    elif before.chunks != after.chunks:
        found.append(f"chunks {summary(before.chunks)} became {summary(after.chunks)}")
    return found


def connections(direct: list[Request], proxied: list[Request]) -> list[str]:
    before, after = (len({request.connection for request in requests}) for requests in (direct, proxied))
    return [] if before == after else [f"all: {before} connections became {after}"]


def kept(fields: list[str], common: Counter) -> list[str]:
    left = common.copy()
    order = []
    for field in fields:
        if left[field] > 0:
            left[field] -= 1
            order.append(field)
    return order


def names(fields: list[str]) -> str:
    return ", ".join(field.partition(":")[0] for field in fields)


def summary(chunks: list[int]) -> str:
    return "none" if not chunks else f"{len(chunks)} of up to {max(chunks)} bytes"
