"""Where a server is, and the bytes of a request to it."""

from dataclasses import dataclass
from urllib.parse import urlsplit

from inference_lab.errors import InputError


@dataclass(frozen=True, slots=True)
class Target:
    """Where the server is, read from a base URL such as http://127.0.0.1:8000/v1."""

    scheme: str
    host: str
    port: int
    prefix: str

    @classmethod
    def parse(cls, base_url: str) -> "Target":
        """The target of a base URL; raises InputError naming what is wrong with it."""
        try:
            url = urlsplit(base_url)
            port = url.port or (443 if url.scheme == "https" else 80)
        except ValueError as error:
            raise InputError(f"base URL {base_url!r}: {error}") from None
        if url.username or url.password:
            raise InputError("base URL holds a user or password; records would keep it: use a key")
        if url.scheme not in ("http", "https") or not url.hostname or url.query or url.fragment:
            raise InputError(f"base URL {base_url!r}: must be like http://127.0.0.1:8000/v1")
        return cls(url.scheme, url.hostname, port, url.path.rstrip("/"))

    def request(
        self, method: str, path: str, body: bytes = b"", *, request_id: str = "", key: str | None = None
    ) -> bytes:
        """The whole HTTP request as bytes."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        lines = [f"{method} {self.prefix}{path} HTTP/1.1", f"Host: {host}:{self.port}"]
        lines += ["Accept: text/event-stream, application/json", f"Content-Length: {len(body)}"]
        lines += ["Content-Type: application/json"] if body else []
        lines += [f"X-Request-Id: {request_id}"] if request_id else []
        lines += [f"Authorization: Bearer {key}"] if key else []
        return "\r\n".join([*lines, "", ""]).encode() + body
