"""Where a server is, how it is reached, and the bytes of a request to it."""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import parse_qsl, urlsplit

from inference_lab.errors import InputError

KEY_HEADER = "Authorization"
_TOKEN = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")  # a header's name (RFC 9110)
_SECRET = frozenset({"apikey", "auth", "authorization", "cookie", "credential", "key", "password", "secret",
                     "sig", "signature", "token"})  # fmt: skip
_FRAMING = frozenset({"connection", "content-length", "transfer-encoding", "x-request-id"})


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Where the server is, read from a base URL such as http://127.0.0.1:8000/v1.

    `query` goes behind every path; `headers` go with every request, in place of our own of that name. With
    `unix_socket` the connection is to that file, and the host is only named. The API key goes into the
    header `key_header`, as a bearer's if that is Authorization.
    """

    scheme: str
    host: str
    port: int
    prefix: str
    query: str = ""
    headers: Mapping[str, str] = field(default_factory=dict[str, str])
    unix_socket: Path | None = None
    key_header: str = KEY_HEADER

    @classmethod
    def parse(
        cls,
        base_url: str,
        headers: Mapping[str, str] = {},
        unix_socket: Path | None = None,
        key_header: str = KEY_HEADER,
    ) -> "Endpoint":
        """The target of a base URL; raises InputError naming what is wrong with it.

        Refused are secrets, which records would keep: a user or password, a key in the query or in a header.
        """
        if "@" in base_url:  # before any message that repeats it
            raise InputError("base URL holds a user or password; records would keep it: use a key")
        query = parse_qsl(base_url.partition("?")[2], keep_blank_values=True)
        if secret := named_secret(name for name, _ in query):
            raise InputError(f"base URL holds {secret!r} in its query; records would keep it: use a key")
        try:
            url = urlsplit(base_url)
            port = url.port or (443 if url.scheme == "https" else 80)
            host = (url.hostname or "").encode("idna").decode()
        except ValueError as error:  # of the port, brackets, or a label that is empty or too long
            raise InputError(f"base URL {base_url!r}: {error}") from None
        is_sendable = re.fullmatch(r"[!-~]+", f"{host}{url.path}?{url.query}")
        if url.scheme not in ("http", "https") or not host or url.fragment or not is_sendable:
            raise InputError(f"base URL {base_url!r}: must be like http://127.0.0.1:8000/v1")
        for name, value in headers.items():
            _check_header(name, value)
        if not _TOKEN.fullmatch(key_header) or key_header.lower() in _FRAMING:
            raise InputError(f"key header {key_header!r}: must be a header's name, such as api-key")
        prefix = url.path.rstrip("/")
        return cls(url.scheme, host, port, prefix, url.query, dict(headers), unix_socket, key_header)

    @property
    def is_plain_tcp(self) -> bool:
        """Whether the kernel can stamp what arrives from there."""
        return self.scheme == "http" and self.unix_socket is None

    def request(
        self, method: str, path: str, body: bytes = b"", *, request_id: str = "", key: str | None = None
    ) -> bytes:
        """The whole HTTP request as bytes."""
        host = f"[{self.host.partition('%')[0]}]" if ":" in self.host else self.host
        is_default = self.port == (443 if self.scheme == "https" else 80)
        headers = {
            "Host": host if is_default else f"{host}:{self.port}",
            "Accept": "text/event-stream, application/json",
            "Accept-Encoding": "identity",  # a compressed stream has no events to be stamped
            "Content-Length": str(len(body)),
        }
        if body:
            headers["Content-Type"] = "application/json"
        if request_id:
            headers["X-Request-Id"] = request_id
        if key:
            headers[self.key_header] = f"Bearer {key}" if self.key_header.lower() == "authorization" else key
        own = {name.lower() for name in self.headers}
        lines = [f"{name}: {value}" for name, value in headers.items() if name.lower() not in own]
        lines += [f"{name}: {value}" for name, value in self.headers.items()]
        where = f"{self.prefix}{path}" + (f"?{self.query}" if self.query else "")
        return "\r\n".join([f"{method} {where} HTTP/1.1", *lines, "", ""]).encode() + body


def named_secret(names: Iterable[str]) -> str | None:
    """The first name that says that its value is a secret."""
    return next((name for name in names if _SECRET & set(re.split(r"[-_.\s]+", name.lower()))), None)


def _check_header(name: str, value: str) -> None:
    if not _TOKEN.fullmatch(name) or not re.fullmatch(r"[ -~]*", value):
        raise InputError(f"header {name!r}: must be a name, a colon and printable ASCII, as in 'X-Team: lab'")
    if named_secret([name]):
        way_out = f"export it and give --api-key-env NAME --api-key-header {name}"
        raise InputError(f"header {name!r} holds a secret, which records would show; {way_out}")
    if name.lower() in _FRAMING:
        raise InputError(f"header {name!r}: is set by the client itself; leave it away")
