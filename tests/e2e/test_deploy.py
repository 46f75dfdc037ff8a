"""Tests of the files under tools/deploy, and of weir's notifications to a service manager."""

from __future__ import annotations

import errno
import gzip
import http.client
import json
import re
import shutil
import signal
import socket
import ssl
import subprocess
import sys
from pathlib import Path

import pytest

from harness import confined, metrics
from harness.certificates import Authority
from harness.flags import defaults as flags_of_help
from harness.ports import free_port
from harness.processes import ROOT, Redis, Weir, binary
from harness.waiting import until

pytestmark = pytest.mark.weir_only

DEPLOY = ROOT / "tools" / "deploy"


def run(*words: str) -> str:
    done = subprocess.run(words, capture_output=True, text=True, cwd=DEPLOY, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_each_alert_fires_for_its_trouble_and_none_in_a_healthy_minute():
    assert shutil.which("promtool"), "promtool is not installed: tests/run setup"
    run("promtool", "check", "rules", "alerts.yml")
    assert "SUCCESS" in run("promtool", "test", "rules", "alerts_test.yml")
    alerts = [line.split()[-1] for line in (DEPLOY / "alerts.yml").read_text().splitlines() if "- alert:" in line]
    tested = (DEPLOY / "alerts_test.yml").read_text()
    assert len(alerts) > 10 and all(f"alertname: {alert}\n" in tested for alert in alerts)


def test_the_dashboard_asks_what_prometheus_understands(tmp_path: Path):
    panels = json.loads((DEPLOY / "dashboard.json").read_text())["panels"]
    rules = []
    for number, target in enumerate(target for panel in panels for target in panel["targets"]):
        asked = target["expr"].replace("$__rate_interval", "1m").replace("$instance", ".*")
        rules.append({"record": f"panel:{number}", "expr": asked})
    file = tmp_path / "rules.yml"
    # JSON is YAML.
    file.write_text(json.dumps({"groups": [{"name": "dashboard", "rules": rules}]}))
    assert f"{len(rules)} rules found" in run("promtool", "check", "rules", str(file))


@pytest.mark.parametrize("file", ["alerts.yml", "dashboard.json"])
def test_they_look_at_metrics_that_there_are(servers, file: str):
    weir = servers.weir(flags=["--fleet", f"redis://{servers.redis().address}"])
    until(lambda: "# TYPE weir_fleet_share_ratio " in weir.admin("/metrics")[1], "the fleet is joined")
    there = metrics.parse(weir.admin("/metrics")[1])
    text = (DEPLOY / file).read_text()
    families = {word for word in "".join(c if c.isalnum() or c == "_" else " " for c in text).split() if word.startswith("weir_")}
    # No key is hot here, so there is no series, only the heading of the family.
    heads = weir.admin("/metrics")[1]
    assert len(families) > 10 and all(name in there or f"# TYPE {name} " in heads for name in families), families - set(there)


def test_the_sample_quotas_are_right(tmp_path: Path):
    done = subprocess.run(
        [str(binary("weir")), "--check", "--quotas", str(DEPLOY / "quotas" / "quotas.toml")], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr


def test_the_unit_is_one():
    if not shutil.which("systemd-analyze"):
        pytest.skip("systemd is not here")
    done = subprocess.run(["systemd-analyze", "verify", "--man=no", str(DEPLOY / "weir.service")], capture_output=True, text=True, timeout=60)
    # weir need not be installed for this check.
    complaints = [line for line in done.stderr.splitlines() if "weir.service" in line and "/usr/bin/weir" not in line]
    assert complaints == []


class Watched(Weir):
    """A weir that a service manager has started."""

    def __init__(self, manager: Path) -> None:
        super().__init__(flags=["--shards", "2"])
        self.manager = manager

    def environment(self) -> dict[str, str]:
        return {**super().environment(), "NOTIFY_SOCKET": str(self.manager), "WATCHDOG_USEC": "600000"}


def test_a_service_manager_is_told(servers, tmp_path: Path):
    path = tmp_path / "notify"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(str(path))
        manager.settimeout(60)
        weir = servers.keep(Watched(path)).start()
        # Where the start takes long, the watchdog may hear of it first.
        until(lambda: manager.recv(100) == b"READY=1", "it says that it is ready")
        for _ in range(3):
            assert manager.recv(100) == b"WATCHDOG=1"
        weir.signal(signal.SIGTERM)
        until(lambda: manager.recv(100) == b"STOPPING=1", "it says that it ends")
        assert weir.wait() == 0


class Confined(Weir):
    """A weir in a container, whose seccomp profile limits its system calls."""

    def __init__(self, profile: Path, *backends: Redis, flags: list[str] | None = None) -> None:
        super().__init__(*backends, flags=flags)
        self.profile = profile

    def command(self) -> list[str]:
        return [sys.executable, str(Path(confined.__file__)), str(self.profile), *super().command()]


def test_weir_does_what_it_does_within_the_seccomp_profile(servers, tmp_path: Path):
    authority = Authority(tmp_path)
    pair = authority.sign("server", "/CN=weir", "DNS:localhost")
    quotas = tmp_path / "quotas.toml"
    quotas.write_text("[default]\nru_per_second = 1_000_000\n")
    http_port, secure_port = free_port(), free_port()
    flags = ["--shards", "2", "--quotas", str(quotas), "--http", f"127.0.0.1:{http_port}"]
    flags += ["--tls-listen", f"127.0.0.1:{secure_port}", "--tls-cert", str(pair.certificate), "--tls-key", str(pair.key)]
    stores = [servers.redis(), servers.redis()]
    flags += ["--fleet", f"redis://{stores[0].address}", "--takeover", str(tmp_path / "takeover")]
    weir = servers.keep(Confined(DEPLOY / "seccomp.json", *stores, flags=flags)).start()
    assert "Seccomp:\t2\n" in Path(f"/proc/{weir.process.pid}/status").read_text()
    with weir.connect() as client:
        for number in range(100):
            assert client.ok("SET", f"key:{number}", "value") == b"OK"
        assert client.ok("MGET", *(f"key:{number}" for number in range(100))) == [b"value"] * 100
    connection = http.client.HTTPConnection("127.0.0.1", http_port, timeout=30)
    connection.request("GET", "/v1/keys/key:7")
    assert connection.getresponse().read() == b"value"
    connection.close()
    trusting = ssl.create_default_context(cafile=str(authority.certificate))
    with socket.create_connection(("127.0.0.1", secure_port), timeout=30) as plain:
        with trusting.wrap_socket(plain, server_hostname="localhost") as secure:
            secure.sendall(b"PING\r\n")
            assert secure.recv(100) == b"+PONG\r\n"
    quotas.write_text("[default]\nru_per_second = 2_000_000\n")
    until(lambda: "2000000" in weir.admin("/config/quotas")[1], "what changed is in force")
    weir.signal(signal.SIGTERM)
    assert weir.wait() == 0


def test_a_profile_without_io_uring_is_named(tmp_path: Path):
    profile = json.loads((DEPLOY / "seccomp.json").read_text())
    profile["syscalls"] = [group for group in profile["syscalls"] if "io_uring_setup" not in group["names"]]
    file = tmp_path / "without.json"
    for error, words in ((errno.ENOSYS, "there is no io_uring here: a container's seccomp profile"), (errno.EPERM, "is forbidden here")):
        file.write_text(json.dumps({**profile, "defaultErrnoRet": error}))
        command = [sys.executable, str(Path(confined.__file__)), str(file), str(binary("weir")), "--listen", "127.0.0.1:0", "--admin", "off"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60)
        assert done.returncode != 0 and words in done.stderr and "io_uring_setup" in done.stderr, done.stderr


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The Debian package of the binaries under test."""
    out = tmp_path_factory.mktemp("deb") / "weir.deb"
    run(str(DEPLOY / "deb"), str(binary("weir").parent), str(out))
    return out


def test_man_page_and_completions_have_every_flag(package: Path, tmp_path: Path):
    run("dpkg-deb", "--extract", str(package), str(tmp_path))
    page = gzip.decompress((tmp_path / "usr/share/man/man1/weir.1.gz").read_bytes()).decode().replace("\\-", "-")
    bash, zsh, fish = (
        (tmp_path / "usr/share" / file).read_text()
        for file in ("bash-completion/completions/weir", "zsh/vendor-completions/_weir", "fish/vendor_completions.d/weir.fish")
    )
    flags = flags_of_help()
    assert len(flags) > 40 and "takeover" in flags
    for flag in flags:
        assert f"\\fB--{flag}\\fR" in page and f"--{flag}" in bash and f"--{flag}" in zsh and f"-l {flag} " in fish, flag
        assert f"WEIR_{flag.upper().replace('-', '_')}" in page, flag
    assert "weir-top(1)" in page and (tmp_path / "usr/share/man/man1/weir-top.1.gz").exists()
    script = f"source {tmp_path}/usr/share/bash-completion/completions/weir; COMP_WORDS=(weir --take); COMP_CWORD=1; _weir weir --take weir"
    assert run("bash", "-c", script + '; echo "${COMPREPLY[@]}"') == "--takeover\n"


def test_the_package_asks_for_the_libc_that_its_programs_need(package: Path, tmp_path: Path):
    run("dpkg-deb", "--extract", str(package), str(tmp_path))
    programs = [str(program) for program in (tmp_path / "usr/bin").iterdir()]
    needed = [tuple(map(int, version)) for version in re.findall(r"Name: GLIBC_(\d+)\.(\d+)", run("readelf", "-V", *programs))]
    major, minor = max(needed)
    assert run("dpkg-deb", "--field", str(package), "Depends") == f"libc6 (>= {major}.{minor}), libgcc-s1\n"


class Installed(Weir):
    """A weir that its package has installed in some folder."""

    def __init__(self, root: Path) -> None:
        super().__init__(flags=["--quotas", str(root / "etc/weir/quotas.toml"), "--shards", "2"])
        self.root = root

    def command(self) -> list[str]:
        return [str(self.root / "usr/bin/weir"), *super().command()[1:]]


def test_the_package_is_installed_serves_and_is_purged(servers, package: Path, tmp_path: Path):
    root, admin = tmp_path / "root", tmp_path / "admin"
    for folder in (root, admin / "info", admin / "updates", admin / "triggers"):
        folder.mkdir(parents=True)
    for file in ("status", "available"):
        (admin / file).touch()
    # The package's scripts see by DPKG_ROOT that the folder is no running system; the folder has no libc of its own.
    dpkg = ["dpkg", f"--instdir={root}", f"--admindir={admin}", f"--log={tmp_path}/log", "--force-script-chrootless"]
    dpkg += ["--force-depends", "--force-not-root", "--force-bad-path"]
    run(*dpkg, "--install", str(package))
    fields = run("dpkg-query", f"--admindir={admin}", "--showformat=${Version} ${Status}", "--show", "weir")
    assert fields == f"{run(str(root / 'usr/bin/weir'), '--version').split()[1]}-1 install ok installed"
    unit = (root / "lib/systemd/system/weir.service").read_text()
    named = re.findall(r"^(?:ExecStart|EnvironmentFile)=-?(\S+)", unit, re.MULTILINE)
    assert len(named) == 2 and all((root / path.lstrip("/")).exists() for path in named), named
    weir = servers.keep(Installed(root)).start()
    with weir.connect() as client:
        assert client.ok("AUTH", "shop", "change-me") == b"OK"
        assert client.ok("SET", "shop:1", "x") == b"OK"
    weir.terminate()
    # Changed settings survive an upgrade and a removal; a purge removes them.
    settings = root / "etc/default/weir"
    settings.write_text("WEIR_STORAGE=redis://10.0.0.1:6379\n")
    run(*dpkg, "--force-confold", "--install", str(package))
    run(*dpkg, "--remove", "weir")
    assert settings.read_text().startswith("WEIR_STORAGE=") and not (root / "usr/bin/weir").exists()
    run(*dpkg, "--purge", "weir")
    assert [path for path in root.rglob("*") if not path.is_dir()] == []
