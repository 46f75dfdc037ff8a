"""The processes of a run: stores, what stands before them, and what is said to them."""

from __future__ import annotations

import http.client
import os
import re
import shutil
import subprocess
from pathlib import Path

import bench
import peers
from harness.processes import Redis, Storage, Weir, binary
from harness.resp import Closed, Connection

from .measured import Snapshot, samples
from .parts import Scenario

ASK_SECONDS = 5.0
FOLDER_KEPT = ("output", "quotas.toml", "script.toml", "nutcracker.yml")


class Store(Storage):
    own_group = True


class Twemproxy(peers.Twemproxy):
    own_group = True


class Dispatcher(Weir):
    own_group = True

    def page(self, path: str) -> str | None:
        """An admin page, or None where there is none."""
        try:
            status, text = self.admin(path)
        except (OSError, http.client.HTTPException):
            return None
        return text if status == 200 else None


def build() -> None:
    """Release binaries, unless WEIR_BINARIES says where others are."""
    if "WEIR_BINARIES" in os.environ:
        return
    subprocess.run(["cargo", "build", "--quiet", "--release", "--bins"], check=True, cwd=bench.ROOT)
    os.environ["WEIR_BINARIES"] = str(bench.TARGET / "release")


def known_flags() -> set[str]:
    """The flags that the weir at hand knows. Older ones have no --help-all, and list every flag in --help."""
    told = subprocess.run([binary("weir"), "--help-all"], capture_output=True, text=True, check=False)
    if told.returncode != 0:
        told = subprocess.run([binary("weir"), "--help"], capture_output=True, text=True, check=True)
    help_text = told.stdout
    return set(re.findall(r"^\s+(?:-\w, )?(--[a-z][a-z0-9-]*)", help_text, re.MULTILINE))


class Cast:
    """Everything that one run starts."""

    def __init__(self, scenario: Scenario, target: str, flags: list[str]) -> None:
        self.scenario = scenario
        self.target = target
        self.stores: dict[str, list[Store]] = {}
        self.front: Dispatcher | Twemproxy | None = None
        self.flags = flags

    @property
    def all_stores(self) -> list[Store]:
        return [store for stores in self.stores.values() for store in stores]

    @property
    def servers(self) -> list[Redis]:
        return [*([self.front] if self.front else []), *self.all_stores]

    @property
    def weir(self) -> Dispatcher | None:
        return self.front if isinstance(self.front, Dispatcher) else None

    def start(self) -> None:
        for spec in self.scenario.storages:
            self.stores[spec.name] = []
            for number in range(spec.count):
                store = Store(*spec.flags, "--seed", str(number + 1))
                self.stores[spec.name].append(store)
                if spec.script is not None:
                    script = store.folder / "script.toml"
                    script.write_text(spec.script)
                    store.options = (*store.options, "--script", str(script))
                store.start()
        if self.target == "twemproxy":
            self.front = Twemproxy(*self.all_stores)
        elif self.target == "weir":
            self.front = Dispatcher(*self.all_stores, flags=self.flags)
            if self.scenario.quotas is not None:
                quotas = self.front.folder / "quotas.toml"
                quotas.write_text(self.scenario.quotas)
                self.front.flags = [*self.front.flags, "--quotas", str(quotas)]
        if self.front:
            self.front.start()

    def addresses(self) -> list[str]:
        """Where the load goes."""
        return [f"127.0.0.1:{server.port}" for server in ([self.front] if self.front else self.all_stores)]

    def say(self, name: str | None, command: str) -> list[str]:
        """Tells stores something; what they refuse is returned."""
        complaints = []
        for server in self.stores[name] if name else self.all_stores:
            try:
                with Connection(server.port, timeout=ASK_SECONDS) as connection:
                    reply = connection.call("STORAGE", *command.split())
            except (OSError, Closed) as error:
                complaints.append(f"STORAGE {command}: {error}")
                continue
            if reply.is_error:
                complaints.append(f"STORAGE {command} was answered with: {reply.text}")
        return complaints

    def look(self, planned: float, at: float, keys: list[str]) -> Snapshot:
        """What everybody says now. Who does not answer is left out."""
        snapshot = Snapshot(planned, at)
        if self.weir:
            page = self.weir.page("/metrics")
            snapshot.metrics = samples(page) if page is not None else None
        for name, stores in self.stores.items():
            for store in stores:
                try:
                    with Connection(store.port, timeout=ASK_SECONDS) as connection:
                        snapshot.storages.setdefault(name, []).append(figures(connection.ok("STORAGE", "STATS")))
                        for key in keys:
                            snapshot.keys.setdefault(key, {}).setdefault(name, []).append(of_key(connection, key))
                except (OSError, Closed, AssertionError):
                    continue
        return snapshot

    def ended(self) -> list[str]:
        """Who ended without being told to."""
        return [
            f"{server.name} ended with {server.process.returncode}: {server.output(500).strip()}"
            for server in self.servers
            if server.process is not None and server.exited()
        ]

    def stop(self, keep: Path | None) -> None:
        for number, server in enumerate(self.servers):
            server.stop()
            if keep is not None:
                kept = keep / f"{number}-{server.name}"
                kept.mkdir(parents=True, exist_ok=True)
                for file in FOLDER_KEPT:
                    if (server.folder / file).exists():
                        shutil.copy(server.folder / file, kept)
            server.discard()


def figures(said: list) -> dict[str, int]:
    """Names and numbers from a flat list."""
    return {name.decode(): number for name, number in zip(said[::2], said[1::2])}


def of_key(connection: Connection, key: str) -> dict[str, int]:
    """How a key was read; a store that does not tell it all tells at least how often."""
    reply = connection.call("STORAGE", "KEY", key)
    if reply.is_error:
        return {"reads": connection.ok("STORAGE", "READS", key)}
    names = {"reads": "reads", "in_flight_max": "reads_in_flight_max", "per_second_max": "reads_per_second_max"}
    return {names[name]: number for name, number in figures(reply.plain()).items() if name in names}
