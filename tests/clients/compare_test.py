"""That the comparison sees what it is there to see."""

import unittest
from pathlib import Path

from compare import differences, load_allowed
from origin import Request

HEAD = b"POST /echo HTTP/1.1\r\nHost: ota.test\r\nAccept: */*\r\nX-Twice: 1\r\nX-Twice: 2\r\n\r\n"


def seen(head: bytes = HEAD, body: bytes = b"abc", connection: int = 1, chunks: tuple[int, ...] = ()) -> list[Request]:
    return [Request(connection, head, body, list(chunks))]


class Compare(unittest.TestCase):
    def test_equal_requests_do_not_differ(self):
        self.assertEqual(differences(seen(), seen()), [])

    def test_every_kind_of_change_is_seen(self):
        for after, told in (
            (seen(HEAD.replace(b"Accept", b"accept")), "- Accept: */*"),
            (seen(HEAD.replace(b"\r\n\r\n", b"\r\nVia: 1.1 x\r\n\r\n")), "+ Via: 1.1 x"),
            (seen(HEAD.replace(b"1\r\nX-Twice: 2", b"2\r\nX-Twice: 1")), "order of fields"),
            (seen(HEAD.replace(b"/echo", b"/ECHO")), "request line"),
            (seen(body=b"abd"), "body of 3 bytes"),
            (seen(chunks=(3,)), "chunks none became"),
            ([], "request lost"),
            (seen() + seen(), "request added"),
        ):
            with self.subTest(told):
                self.assertTrue(any(told in difference for difference in differences(seen(), after)))

    def test_the_list_allows_what_it_names_and_nothing_else(self):
        allowed = load_allowed(Path(__file__).with_name("allowed.txt"))

        def is_allowed(client: str, difference: str) -> bool:
            return any(entry.covers(client, difference) for entry in allowed)

        self.assertTrue(is_allowed("curl", "POST /echo: - Expect: 100-continue"))
        for client, difference in (
            ("wget", "POST /echo: - Expect: 100-continue"),
            ("curl", "GET /get: - Connection: close"),
            ("curl", "GET /get: + Via: 1.1 x"),
            ("curl", "POST /echo: body of 3 bytes became 4 other bytes"),
            ("Perl LWP", "GET /get: order of fields became Host, TE from TE, Host"),
        ):
            self.assertFalse(is_allowed(client, difference), difference)


if __name__ == "__main__":
    unittest.main()
