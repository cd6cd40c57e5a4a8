"""A TLS origin that answers the scenarios of the client tests and keeps every byte of every request.

It reads requests off the socket itself, since a library would hide what is compared: the spelling and order of header
fields, and the framing of the body.
"""

import gzip
import socket
import ssl
import threading
from dataclasses import dataclass, field

BODY = bytes(range(256)) * 16
GZIPPED = gzip.compress(BODY, mtime=0)


@dataclass
class Request:
    """One request as it came over the wire."""

    connection: int
    head: bytes
    body: bytes
    chunks: list[int] = field(default_factory=list)

    @property
    def method(self) -> str:
        return self.head.split(b" ", 1)[0].decode("latin-1")

    @property
    def path(self) -> str:
        return self.head.split(b" ", 2)[1].decode("latin-1")

    def fields(self) -> list[str]:
        """The header lines, as they were spelled."""
        return self.head.decode("latin-1").split("\r\n")[1:-2]


class Origin:
    """Listens on a free port of 127.0.0.1 until closed."""

    def __init__(self, certificate: str, key: str):
        self._context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._context.load_cert_chain(certificate, key)
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=64)
        self.port = self._listener.getsockname()[1]
        self._lock = threading.Lock()
        self._requests: list[Request] = []
        self._connections = 0
        threading.Thread(target=self._accept, daemon=True).start()

    def take(self) -> list[Request]:
        """The requests since the last call, connections counted from 1 in the order in which they sent something."""
        with self._lock:
            taken, self._requests = self._requests, []
        order: dict[int, int] = {}
        for request in taken:
            request.connection = order.setdefault(request.connection, len(order) + 1)
        return taken

    def close(self) -> None:
        self._listener.close()

    def _accept(self) -> None:
        while True:
            try:
                raw, _ = self._listener.accept()
            except OSError:
                return
            self._connections += 1
            threading.Thread(target=self._serve, args=(raw, self._connections), daemon=True).start()

    def _serve(self, raw: socket.socket, connection: int) -> None:
        raw.settimeout(30)
        raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        try:
            with self._context.wrap_socket(raw, server_side=True) as stream, stream.makefile("rb") as reader:
                while True:
                    request = read_request(reader, stream, connection)
                    if request is None:
                        return
                    with self._lock:
                        self._requests.append(request)
                    stream.sendall(answer(request))
                    if asks_to_close(request):
                        return
        except OSError:
            # The client went away, or did not trust the certificate: what it says itself is judged.
            return


def read_request(reader, stream, connection: int) -> Request | None:
    """Reads one request with its body, or None where the client has closed."""
    head = b""
    while not head.endswith(b"\r\n\r\n"):
        line = reader.readline(65536)
        if not line:
            return None
        head += line
    request = Request(connection, head, b"")
    if value(request, "expect").lower() == "100-continue":
        stream.sendall(b"HTTP/1.1 100 Continue\r\n\r\n")
    if value(request, "transfer-encoding").lower() == "chunked":
        while size := int(reader.readline().split(b";")[0], 16):
            request.chunks.append(size)
            request.body += reader.read(size)
            reader.readline()
        while reader.readline().strip():
            pass
    else:
        request.body = reader.read(int(value(request, "content-length") or 0))
    return request


def value(request: Request, name: str) -> str:
    """The value of the first field of that name, or nothing."""
    for line in request.fields():
        key, _, content = line.partition(":")
        if key.lower() == name:
            return content.strip()
    return ""


def asks_to_close(request: Request) -> bool:
    is_old = request.head.split(b"\r\n", 1)[0].endswith(b"HTTP/1.0")
    connection = value(request, "connection").lower()
    return connection == "close" or (is_old and connection != "keep-alive")


def answer(request: Request) -> bytes:
    """The whole answer to one request. Spelling and order are unusual on purpose: they must reach the client."""
    path = request.path.partition("?")[0]
    if path == "/echo":
        return response("200 OK", request.body, "Content-Type: application/octet-stream")
    if path == "/redirect":
        return response("302 Found", b"", "Location: /landed")
    if path == "/gzip":
        return response("200 OK", GZIPPED, "Content-Encoding: gzip", "Content-Type: application/octet-stream")
    if path == "/missing":
        return response("404 No Such Hotel", b"no such hotel", "Content-Type: text/plain")
    if path == "/head":
        return response("200 OK", BODY, "X-Hotel: head")[: -len(BODY)]
    if path == "/stream":
        chunks = b"".join(b"%x\r\n%s\r\n" % (len(part), part) for part in (BODY[:1000], BODY[1000:]))
        return b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + chunks + b"0\r\n\r\n"
    return response("200 OK", BODY, "X-hOTEL: " + path, "Content-Type: application/octet-stream")


def response(status: str, body: bytes, *fields: str) -> bytes:
    lines = [f"HTTP/1.1 {status}", *fields, f"Content-Length: {len(body)}", "", ""]
    return "\r\n".join(lines).encode("latin-1") + body
