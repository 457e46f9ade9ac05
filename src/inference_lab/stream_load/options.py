"""The options of a load, and their checks."""

import json
import os
import ssl
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path

from inference_lab.errors import InputError
from inference_lab.stream_load.client.endpoint import KEY_HEADER, Endpoint
from inference_lab.stream_load.client.stream import Timeouts
from inference_lab.stream_load.connection import tls_context
from inference_lab.stream_load.requests import JSON
from inference_lab.stream_load.schedule import Schedule
from inference_lab.stream_load.workload import Workload


@dataclass(frozen=True, slots=True)
class LoadOptions:
    """What to load, with what, and how. An empty `workload.model` is discovered through /models.

    `name` begins every request id, so that a server's log tells two clients apart.
    `api_key_env` names the environment variable that holds the key; the key itself is never kept. It goes
    into `api_key_header`; `headers` go with every request. `unix_socket` is connected to instead of the
    host. `ca_file` holds certificate authorities that replace the system's; `insecure` accepts any
    certificate.
    """

    base_url: str
    schedule: Schedule
    workload: Workload
    concurrency: int | None = None
    timeouts: Timeouts = field(default_factory=Timeouts)
    retries: int = 0
    kernel_stamps: bool = True
    api_key_env: str | None = None
    name: str = "r"
    max_failure_share: float = 0.0
    headers: Mapping[str, str] = field(default_factory=dict[str, str])
    api_key_header: str = KEY_HEADER
    unix_socket: Path | None = None
    ca_file: Path | None = None
    insecure: bool = False

    def __post_init__(self) -> None:
        is_https, share, limit = self.endpoint.scheme == "https", self.max_failure_share, self.concurrency
        is_plain = self.name.isascii() and self.name.isprintable()
        other_header = self.api_key_header != KEY_HEADER
        for is_wrong, rule in (
            (
                not is_https and (self.ca_file or self.insecure),
                "--ca, --insecure: only https has certificates",
            ),
            (self.ca_file and self.insecure, "--ca and --insecure: a certificate is checked or it is not"),
            (other_header and not self.api_key_env, "--api-key-header needs --api-key-env"),
            (not is_plain, f"name is {self.name!r}, must be printable ASCII: it goes into a header"),
            (self.retries < 0, f"retries is {self.retries}, must be at least 0"),
            (not 0 <= share <= 1, f"max_failure_share is {share}, must be from 0 to 1"),
            (limit is not None and limit < 1, f"concurrency is {limit}, must be at least 1"),
            (self.schedule.is_closed and not limit, "a closed loop needs a concurrency; or give a --rate"),
        ):
            if is_wrong:
                raise InputError(rule)

    @property
    def endpoint(self) -> Endpoint:
        """The server's address."""
        return Endpoint.parse(
            self.base_url, headers=self.headers, unix_socket=self.unix_socket, key_header=self.api_key_header
        )

    def conditions(self) -> JSON:
        """Return everything that decides what is sent when, as JSON values."""
        return json.loads(json.dumps(asdict(self), default=str))

    def refuse_other_conditions(self, before: JSON) -> None:
        """Raise InputError unless these are the conditions `before` of a load that is to be resumed."""
        # An option that an older load did not know was not used there.
        before = {"api_key_header": KEY_HEADER, "headers": {}, "insecure": False} | before
        for name, value in self.conditions().items():
            if before.get(name) != value:
                words = f"--resume with another {name}: {value}, the run has {before.get(name)}"
                raise InputError(f"{words}; give the same options or another --output")

    def tls(self) -> ssl.SSLContext | None:
        """Return what checks the server's certificate, None for plain HTTP."""
        return tls_context(self.ca_file, insecure=self.insecure) if self.endpoint.scheme == "https" else None

    def api_key(self) -> str | None:
        """Return the key in the environment. Raises InputError when it is unusable or an option holds it."""
        if self.api_key_env is None:
            return None
        key = os.environ.get(self.api_key_env, "").strip()
        if not key or not key.isprintable() or not key.isascii():
            raise InputError(f"environment variable {self.api_key_env} holds no usable API key; export it")
        if len(key) >= 8 and key in str(self.conditions()):
            raise InputError(f"an option holds the key of {self.api_key_env}, which records would keep")
        return key
