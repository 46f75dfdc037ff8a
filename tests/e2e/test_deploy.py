"""What stands under tools/deploy: it is right, and weir tells a service manager how it goes."""

from __future__ import annotations

import json
import shutil
import signal
import socket
import subprocess
from pathlib import Path

import pytest

from harness import metrics
from harness.processes import ROOT, Weir, binary
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
    weir = servers.weir()
    there = metrics.parse(weir.admin("/metrics")[1])
    text = (DEPLOY / file).read_text()
    families = {word for word in "".join(c if c.isalnum() or c == "_" else " " for c in text).split() if word.startswith("weir_")}
    # No key is hot here, so there is no series; the family has its heading.
    heads = weir.admin("/metrics")[1]
    assert len(families) > 10 and all(name in there or f"# TYPE {name} " in heads for name in families), families - set(there)


def test_the_sample_quotas_are_right(tmp_path: Path):
    done = subprocess.run(
        [str(binary("weir")), "--check", "--quotas", str(DEPLOY / "quotas.toml")], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr


def test_the_unit_is_one():
    if not shutil.which("systemd-analyze"):
        pytest.skip("systemd is not here")
    done = subprocess.run(["systemd-analyze", "verify", "--man=no", str(DEPLOY / "weir.service")], capture_output=True, text=True, timeout=60)
    # weir need not be installed.
    complaints = [line for line in done.stderr.splitlines() if "weir.service" in line and "/usr/bin/weir" not in line]
    assert complaints == []


class Watched(Weir):
    """A weir that was started by a service manager."""

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
        assert manager.recv(100) == b"READY=1"
        for _ in range(3):
            assert manager.recv(100) == b"WATCHDOG=1"
        weir.signal(signal.SIGTERM)
        until(lambda: manager.recv(100) == b"STOPPING=1", "it says that it ends")
        assert weir.wait() == 0
