"""A weir that takes over the sockets and clients of an earlier weir."""

from __future__ import annotations

from pathlib import Path

from .processes import Redis, Weir
from .waiting import until


class Successor(Weir):
    """A weir with a takeover socket, over which a later one can take over."""

    def __init__(
        self,
        *backends: Redis,
        path: Path,
        shards: int = 2,
        drain: str = "10s",
        flags: list[str] | None = None,
        storage: str | None = None,
    ) -> None:
        more = ["--takeover", str(path), "--shards", str(shards), "--drain-timeout", drain]
        super().__init__(*backends, flags=[*more, *(flags or [])], storage=storage)
        self.path = path

    def launch(self) -> None:
        self.starts_before = self.output().count("is ready")
        super().launch()

    def ready(self) -> bool:
        """True once this process itself is ready; the admin port may still be the earlier weir's."""
        return self.output().count("is ready") > self.starts_before

    def after(self, **options) -> Successor:
        """Returns another weir with the same addresses, not started yet."""
        other = type(self)(*self.backends, path=self.path, storage=self.storage, **options)
        other.port, other.admin_port_kept = self.port, self.admin_port
        return other


def take_over(servers, before: Successor, **options) -> Successor:
    after = servers.keep(before.after(**options)).start()
    # On an overloaded machine, the kernel takes seconds to end a process that has watched files.
    assert before.wait(120) == 0, before.output()
    until(lambda: f"clients of process {before.pid} go on here" in after.output(), "it is told that it has all")
    return after
