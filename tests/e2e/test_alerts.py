"""Tests of the alerts of tools/deploy with recorded incidents: tools/deploy/recorded holds the /metrics of each
(`perf/record-alerts`).
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest

from harness.processes import ROOT
from harness.recorded import ABSENT, Recording

pytestmark = pytest.mark.weir_only

DEPLOY = ROOT / "tools" / "deploy"
RECORDED = DEPLOY / "recorded"
# The labels that Prometheus would have added for this weir.
TARGET = {"instance": "weir.example:7381", "job": "weir"}
EVERYTHING = "2h"
FIRING = '{alertstate="firing"}'


@dataclass(frozen=True)
class Firing:
    """An alert that must fire."""

    name: str
    severity: str
    # The most seconds from the begin of the incident until the alert fires.
    within_s: int
    # The label, and its value, that names the cause.
    culprit: tuple[str, str] | None = None
    # The name in the scenario of the stores that fire the alert, one alert each.
    stores: str | None = None

    def labels(self, recording: Recording) -> list[str]:
        """Returns the labels of each alert that must fire."""
        if self.stores:
            culprits = [("backend", address) for address in recording.addresses(self.stores)]
        else:
            culprits = [self.culprit]
        alike = {"alertname": self.name, "alertstate": "firing", "instance": TARGET["instance"], "severity": self.severity}
        found = [{**alike, **dict([culprit] if culprit else [])} for culprit in culprits]
        return ["{" + ",".join(f"{label}={json.dumps(value)}" for label, value in sorted(one.items())) + "}" for one in found]


def played(recording: Recording) -> list[dict[str, str]]:
    """Returns the series in promtool's format, with the labels that Prometheus adds."""
    added = ",".join(f'{label}="{value}"' for label, value in TARGET.items())
    found = []
    for series, values in recording.series.items():
        name, _, labels = series.removesuffix("}").partition("{")
        before = [ABSENT, *values]
        # Prometheus marks a series that has disappeared from the page as stale.
        marked = ["stale" if value == ABSENT != last else value for last, value in zip(before, values, strict=False)]
        found.append({"series": f"{name}{{{labels}{',' if labels else ''}{added}}}", "values": " ".join(marked)})
    return found


def promtool(folder: Path, recording: Recording, asked: list[tuple[str, int, list[str]]]) -> subprocess.CompletedProcess:
    """Evaluates queries with promtool and the alert rules: (expression, seconds since the begin, the labels of all expected
    results, each with value 1).
    """
    assert shutil.which("promtool"), "promtool is not installed: tests/run setup"
    questions = [
        {"expr": expression, "eval_time": f"{at}s", "exp_samples": [{"labels": labels, "value": 1} for labels in wanted]}
        for expression, at, wanted in asked
    ]
    interval = f"{recording.interval}s"
    test = {"interval": interval, "input_series": played(recording), "promql_expr_test": questions}
    file = folder / "played.yml"
    # JSON is YAML.
    file.write_text(json.dumps({"rule_files": [str(DEPLOY / "alerts.yml")], "evaluation_interval": interval, "tests": [test]}))
    return subprocess.run(["promtool", "test", "rules", str(file)], capture_output=True, text=True, timeout=120)


SET_ASIDE = Firing("WeirStoreSetAside", "page", 30, stores="sick")
# For each incident, the window of the recording with which it begins, and the alerts that must fire.
HOURS = {
    "steady-state": (None, ()),
    "tenant-flood": ("onset", (Firing("WeirTenantThrottled", "ticket", 180, ("tenant", "flooder")),)),
    "viral-key": ("rising", (Firing("WeirHotKey", "ticket", 90, ("key", "item:viral")),)),
    "faulty-host": ("event", (SET_ASIDE,)),
    "slow-host": ("event", (SET_ASIDE,)),
    "slow-backend": ("event", (Firing("WeirStoreSetAside", "page", 30, stores="ill"),)),
    "retry-storm": (
        "event",
        (
            Firing("WeirStoreStalled", "page", 20, stores="main"),
            Firing("WeirStoreSetAside", "page", 60, stores="main"),
            Firing("WeirOverload", "page", 60, stores="main"),
        ),
    ),
    # A store above its capacity also replies later than it used to.
    "overload-tiers": ("onset", (Firing("WeirOverload", "page", 60, stores="main"), Firing("WeirStoreSlow", "ticket", 60, stores="main"))),
    "all-critical": (
        "onset",
        (
            Firing("WeirOverload", "page", 60, stores="main"),
            Firing("WeirCriticalShed", "page", 100, ("reason", "queue")),
            Firing("WeirStoreSlow", "ticket", 60, stores="main"),
        ),
    ),
    "queue-full": (
        "onset",
        (
            Firing("WeirQueueFull", "ticket", 90, stores="main"),
            Firing("WeirOverload", "page", 60, stores="main"),
            Firing("WeirStoreSlow", "ticket", 60, stores="main"),
        ),
    ),
    "shard-busy": (
        "flood",
        (Firing("WeirShardBusy", "ticket", 190, ("shard", "0")), Firing("WeirTenantThrottled", "ticket", 180, ("tenant", "flooder"))),
    ),
    "killed": ("event", (Firing("WeirDown", "page", 45, ("job", TARGET["job"])),)),
    # The quota must be nearly used for four fifths of an hour, and the alert waits a quarter of an hour more.
    "near-quota": ("all", (Firing("WeirTenantNearQuota", "ticket", 3_960, ("tenant", "near")),)),
    "quotas-refused": ("event", (Firing("WeirQuotasRefused", "ticket", 15, ("source", "change")),)),
}


@pytest.mark.parametrize("hour", HOURS)
def test_a_bad_hour_fires_the_alerts_that_it_should_in_time_and_no_other(tmp_path: Path, hour: str):
    recording = Recording.read(RECORDED / f"{hour}.txt")
    window, alerts = HOURS[hour]
    end = (recording.samples - 1) * recording.interval
    begin = end if window is None else int(recording.window(window)[0])
    wanted = {alert: alert.labels(recording) for alert in alerts}
    fired = f"max_over_time(ALERTS{FIRING}[{EVERYTHING}])"
    asked = [(fired, begin, []), (fired, end, [labels for each in wanted.values() for labels in each])]
    for alert, labels in wanted.items():
        assert labels and begin + alert.within_s <= end, "it was recorded for that long"
        one = f'max_over_time(ALERTS{{alertname="{alert.name}",alertstate="firing"}}[{EVERYTHING}])'
        asked.append((one, begin + alert.within_s, labels))
    done = promtool(tmp_path, recording, asked)
    assert done.returncode == 0, done.stdout + done.stderr


def test_what_was_recorded_is_what_alerts_look_at_and_little_of_it():
    files = sorted(RECORDED.iterdir())
    assert [file.stem for file in files] == sorted(HOURS) and sum(file.stat().st_size for file in files) < 1 << 20
    alerts = (DEPLOY / "alerts.yml").read_text()
    assert set(re.findall(r"- alert: (\w+)", alerts)) == {alert.name for _, those in HOURS.values() for alert in those}
    # No incident was recorded in a fleet; alerts_test.yml has one.
    families = set(re.findall(r"\bweir_\w+", alerts)) - {"weir_fleet_share_ratio"}
    seen = set()
    for file in files:
        recording = Recording.read(file)
        assert all(len(values) == recording.samples for values in recording.series.values())
        assert ("0" in recording.series["up"]) == (file.stem == "killed")
        seen |= {series.partition("{")[0] for series in recording.series} - {"up"}
    assert seen == families, "what no alert looks at, or none was recorded of"


def test_a_recording_is_read_as_it_was_written(tmp_path: Path):
    kept = Recording("made up", 5, [("calm", 0, 2.5)], [("s", "h:1")])
    for number in range(4):
        kept.add({"up": "1", 'weir_a{key="x y}"}': str(number // 2)} if number < 3 else {"up": "0", 'weir_b{c="d"}': "1e-9"})
    kept.write(tmp_path / "one.txt")
    assert Recording.read(tmp_path / "one.txt") == kept
    assert kept.series['weir_a{key="x y}"}'] == ["0", "0", "1", ABSENT] and kept.series['weir_b{c="d"}'] == [ABSENT] * 3 + ["1e-9"]
    found = {one["series"]: one["values"] for one in played(kept)}
    assert found['weir_a{key="x y}",instance="weir.example:7381",job="weir"}'] == "0 0 1 stale"
    assert found['up{instance="weir.example:7381",job="weir"}'] == "1 1 1 0"
