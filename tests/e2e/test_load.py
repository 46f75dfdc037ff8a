"""Tests of weir-load: its counts add up, its latencies start when a request was due, and it always ends with a report."""

from __future__ import annotations

import http.server
import json
import re
import resource
import signal
import subprocess
import threading
import time
from pathlib import Path

import pytest

from harness.placement import keys_by_backend
from harness.ports import free_port
from harness.processes import Server, Storage, binary
from harness.waiting import until

pytestmark = pytest.mark.paced

COUNTS = {
    "offered", "sent", "served", "throttled", "overloaded", "deadline", "unavailable", "errors", "timeouts", "refused_by_client",
}  # fmt: skip
LATENCIES = {"p50", "p90", "p99", "p99_9", "p99_99", "max"}
SECONDS_MAX = 90


def command(target: str, folder: Path, *flags: str) -> list[str]:
    return [str(binary("weir-load")), "--target", target, "--json", str(folder / "run.json"), *flags]


def run(target: str, folder: Path, *flags: str, code: int = 0) -> dict:
    """Runs weir-load, and returns its JSON report."""
    done = subprocess.run(command(target, folder, *flags), capture_output=True, text=True, timeout=SECONDS_MAX)
    assert done.returncode == code, done.stdout + done.stderr
    return json.loads((folder / "run.json").read_text())


def adds_up(counts: dict) -> bool:
    ends = COUNTS - {"offered", "sent"}
    return counts["offered"] == sum(counts[end] for end in ends)


def tallies(report: dict) -> list[dict]:
    return [report["total"], *report["groups"], *(phase for group in report["groups"] for phase in group["phases"])]


@pytest.fixture(params=["redis", "weir-storage"])
def store(request: pytest.FixtureRequest, servers) -> Server:
    return servers.redis() if request.param == "redis" else servers.keep(Storage()).start()


def address(server: Server) -> str:
    return f"127.0.0.1:{server.port}"


def test_a_run_has_the_contract_names_and_its_counts_add_up(store, tmp_path):
    flags = ["--rate", "2000", "--duration", "2s", "--setup", "100 SET key:{seq} {value:64}", "--command", "GET key:{uniform:100}"]
    report = run(address(store), tmp_path, *flags)
    for tally in tallies(report):
        assert tally["counts"].keys() == COUNTS and tally["latency_ms"].keys() == LATENCIES
        assert adds_up(tally["counts"]), tally
    counts = report["groups"][0]["phases"][0]["counts"]
    assert counts["offered"] == counts["served"] == counts["sent"] == 4000
    latency = report["total"]["latency_ms"]
    assert 0 < latency["p50"] <= latency["p90"] <= latency["p99"] <= latency["p99_9"] <= latency["p99_99"] <= latency["max"]
    assert sum(second["counts"]["offered"] for second in report["seconds"]) == 4000
    assert report["generator"]["cpu_us_per_request"] > 0


def test_a_generator_with_little_to_do_sleeps(servers, tmp_path):
    report = run(address(servers.redis()), tmp_path, "--rate", "50", "--duration", "2s")
    assert report["generator"]["cpu_s"] < report["took_s"] / 4


def test_the_same_seed_sends_the_same_requests(servers, tmp_path):
    asked = []
    for _ in range(2):
        redis = servers.redis()
        run(address(redis), tmp_path, "--rate", "500", "--duration", "1s", "--command", "SET key:{zipf:1000} {rand:8}",
            "--connections", "1", "--seed", "7")
        with redis.connect() as connection:
            asked.append(connection.call("DEBUG", "DIGEST").text)
    assert asked[0] == asked[1] != "0" * 40


def test_a_stall_is_charged_to_every_request_that_was_due(servers, tmp_path):
    """Closed-loop generators fail this test: they would show one slow request per connection."""
    redis, rate = servers.redis(), 2000
    pauser = threading.Thread(target=pause_when_busy, args=(redis,))
    pauser.start()
    report = run(address(redis), tmp_path, "--rate", str(rate), "--duration", "5s", "--connections", "10", "--pipeline", "4")
    pauser.join()
    total = report["total"]
    assert total["counts"]["served"] == rate * 5
    assert total["latency_ms"]["max"] >= 900
    # Requests are due during the whole second of the stall; those of its first half wait for more than half a second.
    assert total["slow"]["over_500ms"] >= rate * 0.45
    assert total["slow"]["over_500ms"] <= rate * 2, "the machine stalls far longer than the store did"


def pause_when_busy(redis) -> None:
    with redis.connect() as connection:
        until(lambda: "instantaneous_ops_per_sec:0" not in connection.call("INFO", "stats").text
              and int(re.search(r"total_commands_processed:(\d+)", connection.call("INFO", "stats").text)[1]) > 1000, "the load runs")
        connection.call("CLIENT", "PAUSE", "1000")


def test_a_target_that_is_not_there_ends_in_a_report(tmp_path):
    started = time.monotonic()
    report = run(f"127.0.0.1:{free_port()}", tmp_path, "--rate", "1000", "--connect-timeout", "500ms", code=1)
    assert time.monotonic() - started < SECONDS_MAX / 2
    assert report["total"]["counts"]["served"] == 0 and report["connections"] == 0
    assert "group 'load': 0 of 50 connections were ready" in report["complaints"]
    refused = [text for text in report["complaints"] if text.startswith("cannot connect to 127.0.0.1:")]
    assert len(refused) == 1 and "Connection refused" in refused[0], report["complaints"]


def test_a_target_that_dies_ends_in_a_report_of_what_was_seen(servers, tmp_path):
    redis = servers.redis()
    flags = ["--rate", "1000", "--duration", "3s", "--retries", "1"]
    load = subprocess.Popen(command(address(redis), tmp_path, *flags), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        for line in load.stderr:
            if "offered" in line:
                break
        redis.kill()
        load.communicate(timeout=SECONDS_MAX)
    finally:
        load.kill()
    report = json.loads((tmp_path / "run.json").read_text())
    counts = report["total"]["counts"]
    assert counts["offered"] == 3000 and adds_up(counts)
    assert counts["served"] > 0 and counts["timeouts"] > 0
    assert report["total"]["latency_ms"]["p50"] > 0 and len(report["seconds"]) >= 3
    assert f"cannot connect to {address(redis)}: " in " ".join(report["complaints"])


def test_a_target_that_comes_back_is_used_again(servers, tmp_path):
    redis = servers.redis()
    load = subprocess.Popen(command(address(redis), tmp_path, "--rate", "500", "--duration", "30s"), stderr=subprocess.PIPE,
                            stdout=subprocess.DEVNULL, text=True)
    try:
        lines = iter(load.stderr)
        next(line for line in lines if "offered" in line)
        redis.kill()
        next(line for line in lines if re.search(r"served +0/s", line))
        redis.start()
        next(line for line in lines if re.search(r"served +[1-9]", line))
        load.send_signal(signal.SIGINT)
        assert load.wait(SECONDS_MAX) == 0
    finally:
        load.kill()
    report = json.loads((tmp_path / "run.json").read_text())
    assert report["interrupted"] and adds_up(report["total"]["counts"])


def test_an_interrupted_run_writes_every_report(servers, tmp_path):
    redis, before = servers.redis(), time.time()
    flags = ["--rate", "1000", "--duration", "60s", "--html", str(tmp_path / "run.html")]
    flags += ["--hgrm", str(tmp_path), "--hlog", str(tmp_path / "run.hlog")]
    load = subprocess.Popen(command(address(redis), tmp_path, *flags), stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        next(line for line in load.stderr if "offered" in line)
        load.send_signal(signal.SIGINT)
        said, _ = load.communicate(timeout=SECONDS_MAX)
    finally:
        load.kill()
    assert load.returncode == 0 and "interrupted after" in said
    report = json.loads((tmp_path / "run.json").read_text())
    assert report["interrupted"] and adds_up(report["total"]["counts"]) and report["total"]["counts"]["served"] > 0
    assert "</html>" in (tmp_path / "run.html").read_text()
    assert "#[Max" in (tmp_path / "load.hgrm").read_text()
    log = (tmp_path / "run.hlog").read_text()
    assert log.count("Tag=load,") >= 1
    start = float(re.search(r"#\[StartTime: ([0-9.]+) ", log)[1])
    assert before <= start <= time.time() and start == report["start_unix_ms"] / 1000


def test_reports_are_written_though_one_of_them_cannot_be(servers, tmp_path):
    html = tmp_path / "run.html"
    flags = ["--rate", "100", "--duration", "100ms", "--html", str(html), "--hgrm", str(tmp_path / "hgrm")]
    words = command(address(servers.redis()), tmp_path, *flags)
    words[words.index("--json") + 1] = "/dev/full"
    done = subprocess.run(words, capture_output=True, text=True, timeout=SECONDS_MAX)
    assert done.returncode == 1 and "/dev/full: No space left" in done.stderr, done.stderr
    assert "</html>" in html.read_text() and (tmp_path / "hgrm" / "load.hgrm").exists()


def test_a_thread_that_cannot_start_ends_the_run(servers, tmp_path):
    """The limit is enough for some threads, but not for all."""
    words = command(address(servers.redis()), tmp_path, "--rate", "100", "--duration", "1s", "--threads", "64", "--connections", "64")
    limited = lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (160, 160))  # noqa: E731
    done = subprocess.run(words, capture_output=True, text=True, timeout=30, preexec_fn=limited)
    assert done.returncode == 1 and "too few files may be open" in done.stderr and "weir-load-" in done.stderr, done.stderr


def test_a_limit_of_open_files_that_may_be_too_low_is_told(servers, tmp_path):
    words = command(address(servers.redis()), tmp_path, "--rate", "100", "--duration", "100ms")
    limited = lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (160, 160))  # noqa: E731
    done = subprocess.run(words, capture_output=True, text=True, timeout=30, preexec_fn=limited)
    assert done.returncode == 0 and "note: the limit of open files is 160, and 182 may be needed" in done.stdout, done.stdout


def test_error_replies_are_told_apart_and_repeated_as_asked(servers, tmp_path):
    redis = servers.redis()
    script = "return redis.error_reply(ARGV[1])"
    for kind, count in [("THROTTLED", "throttled"), ("OVERLOADED", "overloaded"), ("DEADLINE", "deadline"),
                        ("UNAVAILABLE", "unavailable"), ("LOADING", "errors")]:
        report = run(address(redis), tmp_path, "--rate", "200", "--duration", "500ms", "--retries", "2",
                     "--command", f"EVAL '{script}' 0 '{kind} scope=tenant'")
        counts = report["total"]["counts"]
        assert counts[count] == counts["offered"] == 100 and adds_up(counts), counts
        assert 100 <= report["total"]["sends"]["retries"] <= 200, "those that were refused after the end are not repeated"
        assert report["total"]["latency_ms"]["p50"] is None and report["total"]["latency_all_ms"]["p50"] > 0


def test_smart_clients_repeat_no_refusal_and_leave_alone_what_refuses_everything(servers, tmp_path):
    script, refusal = "return redis.error_reply(ARGV[1])", "OVERLOADED reason=queue backend=a:1 retry_after_ms=50"
    report = run(address(servers.redis()), tmp_path, "--client", "smart", "--rate", "1000", "--duration", "2s",
                 "--command", f"EVAL '{script}' 0 '{refusal}'")  # fmt: skip
    counts = report["total"]["counts"]
    assert counts["overloaded"] + counts["refused_by_client"] == counts["offered"] == 2000 and adds_up(counts), counts
    assert report["total"]["sends"]["retries"] == 0
    # About twenty requests until the breaker opens, and then a probe now and then; the number in flight meanwhile depends on the
    # machine.
    assert 20 <= counts["overloaded"] == counts["sent"] <= 1000, counts


def test_smart_clients_use_a_store_that_is_well_like_any_other(store, tmp_path):
    flags = ["--rate", "1000", "--duration", "1s", "--timeout", "60s", "--command", "GET a"]
    report = run(address(store), tmp_path, "--client", "smart", *flags)
    counts = report["total"]["counts"]
    assert counts["served"] == counts["sent"] == counts["offered"] == 1000, counts


def test_requests_are_given_up_after_their_timeout(servers, tmp_path):
    redis = servers.redis()
    flags = ["--rate", "100", "--duration", "1s", "--drain", "3s", "--timeout", "50ms", "--command", "BLPOP nothing 0.3"]
    report = run(address(redis), tmp_path, *flags, "--connections", "100", "--pipeline", "1")
    counts = report["total"]["counts"]
    assert counts["timeouts"] == counts["offered"] == 100 and adds_up(counts)


def test_a_closed_loop_keeps_every_connection_full(store, tmp_path):
    report = run(address(store), tmp_path, "--closed", "--duration", "1s", "--connections", "4", "--pipeline", "8", "--command", "PING")
    counts = report["total"]["counts"]
    assert counts["offered"] == counts["sent"] == counts["served"] > 1000


def test_a_scenario_with_groups_phases_and_a_range_read(store, tmp_path):
    scenario = tmp_path / "scenario.toml"
    scenario.write_text("""
        [[setup]]
        command = "ZADD board {seq} member:{seq}"
        count = 100_000
        group = "scan"
        [[group]]
        name = "point"
        command = "GET key:{hot:1000:90%:10}"
        connections = 4
        [[group.phase]]
        name = "calm"
        duration = "1s"
        rate = 200
        [[group.phase]]
        name = "busy"
        duration = "1s"
        rate = "200..1000"
        command = "GET {viral}"
        [[group]]
        name = "scan"
        connections = 2
        arrivals = "poisson"
        rate = 5
        commands = [{ weight = 3, command = "ZRANGE board 0 -1" }, { command = "ZCARD board" }]
    """)
    html = tmp_path / "run.html"
    flags = ["--scenario", str(scenario), "--plain", "--duration", "2s", "--drain", "5s", "--html", str(html)]
    flags += ["--hlog", str(tmp_path / "run.hlog"), "--hgrm", str(tmp_path / "hgrm")]
    report = run(address(store), tmp_path, *flags)
    point, scan = report["groups"]
    assert [phase["name"] for phase in point["phases"]] == ["calm", "busy"]
    assert [phase["counts"]["offered"] for phase in point["phases"]] == [200, 600]
    assert scan["counts"]["served"] == scan["counts"]["offered"] > 0
    assert all(adds_up(tally["counts"]) for tally in tallies(report)) and report["complaints"] == []
    with store.connect() as connection:
        assert connection.call("ZCARD", "board").text == "100000"
    page = html.read_text()
    assert page.count("<svg") >= 7 and not re.search(r"""(src|href)\s*=|https?://|@import|url\(""", page)
    assert (tmp_path / "run.hlog").read_text().count("HISTF") >= 2
    assert {path.name for path in (tmp_path / "hgrm").iterdir()} == {"point.hgrm", "scan.hgrm"}


def test_rates_are_per_second_of_each_groups_own_time(servers, tmp_path):
    """The store serves 1,000 requests per second, also of those that it has not served when a group's load ends."""
    store = servers.keep(Storage("--service-time", "point=1ms", "--servers", "1")).start()
    scenario = tmp_path / "scenario.toml"
    scenario.write_text("""
        [[group]]
        name = "short"
        rate = 3000
        command = "GET key"
        [[group.phase]]
        duration = "700ms"
        [[group]]
        name = "idle"
        rate = 5
        command = "PING"
        [[group.phase]]
        duration = "3s"
    """)
    report = run(address(store), tmp_path, "--scenario", str(scenario), "--plain", "--drain", "5s")
    short, idle = report["groups"]
    assert (short["duration_s"], idle["duration_s"], report["duration_s"]) == (0.7, 3, 3)
    assert short["counts"]["served"] == 2100 and 850 <= short["goodput_per_s"] <= 1050, short["goodput_per_s"]
    assert short["phases"][0]["goodput_per_s"] == short["goodput_per_s"]
    both = short["goodput_per_s"] * 0.7 + idle["goodput_per_s"] * 3
    assert report["total"]["goodput_per_s"] == pytest.approx(both / 3)


def test_a_cut_ramp_is_the_beginning_of_the_whole(store, tmp_path):
    scenario = tmp_path / "scenario.toml"
    scenario.write_text("""
        [[group]]
        name = "rising"
        command = "PING"
        [[group.phase]]
        duration = "4s"
        rate = "0..4000"
    """)
    report = run(address(store), tmp_path, "--scenario", str(scenario), "--duration", "1s")
    assert report["total"]["counts"]["offered"] == 500 and report["duration_s"] == 1


def test_a_tenant_of_a_scenario_may_have_its_password_from_the_environment(servers, weir_class, tmp_path, monkeypatch):
    if weir_class.name != "weir":
        pytest.skip("only weir has tenants")
    quotas, scenario = tmp_path / "quotas.toml", tmp_path / "scenario.toml"
    quotas.write_text('[tenants.acme]\npassword = "secret"\nru_per_second = 10_000\n')
    scenario.write_text('[[group]]\nname = "a"\ntenant = "acme"\nrate = 100\ncommand = "PING"\n')
    weir = servers.weir(flags=["--quotas", str(quotas)])
    monkeypatch.setenv("WEIR_LOAD_PASSWORD", "secret")
    report = run(address(weir), tmp_path, "--scenario", str(scenario), "--duration", "500ms")
    assert report["total"]["counts"]["served"] == 50 and report["complaints"] == []


def test_metrics_and_an_earlier_run_are_drawn_into_the_report(servers, tmp_path):
    class Page(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = b"# TYPE weir_queue gauge\nweir_queue{shard=\"0\"} 3\nweir_queue{shard=\"1\"} 4\n"
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    redis = servers.redis()
    run(address(redis), tmp_path, "--rate", "100", "--duration", "1s")
    earlier = (tmp_path / "run.json").rename(tmp_path / "earlier.json")
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Page) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        metrics = f"http://127.0.0.1:{server.server_port}/metrics"
        report = run(address(redis), tmp_path, "--rate", "100", "--duration", "1s", "--metrics", metrics,
                     "--html", str(tmp_path / "run.html"), "--compare", str(earlier))
        server.shutdown()
    assert report["metrics"][0]["gauges"] == {"weir_queue": 7.0}
    page = (tmp_path / "run.html").read_text()
    assert "weir_queue" in page and "stroke-dasharray=\"5 4\"" in page


def test_two_earlier_runs_are_compared_phase_by_phase(tmp_path, servers):
    store = servers.keep(Storage("--service-time", "point=1ms")).start()
    scenario = tmp_path / "two.toml"
    text = """
        [[group]]
        name = "clients"
        command = "GET key"
        [[group.phase]]
        name = "calm"
        duration = "1s"
        rate = 100
        [[group.phase]]
        name = "busy"
        duration = "1s"
        rate = RATE
    """
    for name, rate in (("before", "200"), ("after", "400")):
        scenario.write_text(text.replace("RATE", rate))
        run(address(store), tmp_path, "--scenario", str(scenario))
        (tmp_path / "run.json").rename(tmp_path / f"{name}.json")
    words = [str(binary("weir-load")), "compare", "before.json", "after.json", "--html", "both.html"]
    done = subprocess.run(words, capture_output=True, text=True, timeout=SECONDS_MAX, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    blocks = {block[0]: block[1:] for block in re.findall(r"^(\S.*)\n((?:  .*\n)+)", done.stdout, re.MULTILINE)}
    cells = lambda block: {line.split()[0]: line.split()[1:] for line in blocks[block][0].splitlines()}  # noqa: E731
    assert list(blocks) == ["clients", "clients, calm", "clients, busy", "all"], done.stdout
    assert cells("clients, busy")["offered/s"] == ["200", "400", "2.00"]
    # All 100 requests of the calm second were served, and count in its rate if they were before its end.
    reports = [json.loads((tmp_path / f"{name}.json").read_text()) for name in ("before", "after")]
    calm = [report["groups"][0]["phases"][0] for report in reports]
    assert [phase["counts"]["served"] for phase in calm] == [100, 100]
    before, after = (phase["goodput_per_s"] for phase in calm)
    assert 0 < before <= 100 and 0 < after <= 100
    assert cells("clients, calm")["served/s"] == [f"{before:.0f}", f"{after:.0f}", f"{after / before:.2f}"]
    assert cells("all")["served"] == ["300", "(100.00", "%)", "500", "(100.00", "%)", "1.00"]
    page = (tmp_path / "both.html").read_text()
    assert "Both runs" in page and "stroke-dasharray=\"5 4\"" in page and ">busy</text>" in page


def test_a_tenant_of_weir_is_let_in_throttled_and_told_when_not(servers, weir_class, tmp_path):
    if weir_class.name != "weir":
        pytest.skip("only weir has tenants")
    weir = servers.weir()
    report = run(address(weir), tmp_path, "--rate", "200", "--duration", "1s", "--user", "ann", "--tier", "batch", "--deadline", "500ms")
    assert report["total"]["counts"]["served"] == 200 and report["complaints"] == []
    report = run(address(weir), tmp_path, "--rate", "200", "--duration", "1s", "--tenant", "nobody", "--password", "x",
                 "--connect-timeout", "500ms", code=1)
    assert "group 'nobody' was not let in" in " ".join(report["complaints"])


def test_an_array_with_errors_counts_as_the_first_of_them(servers, weir_class, tmp_path):
    if weir_class.name != "weir":
        pytest.skip("only weir has several stores")
    weir = servers.weir(servers.redis(), servers.redis())
    (_, (here, *_)), (store, (there, *_)) = keys_by_backend(weir, "key").items()
    store.kill()
    for key, is_served in ((here, True), (there, False)):
        report = run(address(weir), tmp_path, "--rate", "200", "--duration", "1s", "--command", f"MGET {here} {key}")
        counts = report["total"]["counts"]
        assert counts["served"] == (200 if is_served else 0) and adds_up(counts), counts
        assert counts["unavailable"] + counts["overloaded"] == (0 if is_served else 200), counts


@pytest.mark.parametrize("flags, complaint", [
    (["--rate", "fast"], "'fast' is no rate"),
    (["--command", "GET {zip:5}"], "{zip:5} is not known"),
    (["--scenario", "missing.toml"], "missing.toml"),
    (["--compare", "missing.json", "--html", "a.html"], "--compare missing.json"),
    (["compare", "missing.json", "missing.json"], "missing.json: "),
    (["--rate", "5", "compare", "a.json", "b.json"], "cannot be used with"),
    (["--html", "nowhere/a.html"], "there is no folder nowhere"),
    (["--json", "."], "--json .: a file is expected, and this is a folder"),
    (["--hgrm", "/dev/null/folder"], "--hgrm /dev/null/folder: /dev/null is no folder"),
    (["--target", "nowhere"], "--target nowhere"),
])
def test_what_makes_no_sense_is_told_before_anything_is_sent(flags, complaint, tmp_path):
    done = subprocess.run([str(binary("weir-load")), *flags], capture_output=True, text=True, timeout=SECONDS_MAX, cwd=tmp_path)
    assert done.returncode == 2 and complaint in done.stderr, done.stderr


def test_a_scenario_that_makes_no_sense_is_told_by_line(tmp_path):
    scenario = tmp_path / "wrong.toml"
    scenario.write_text('[[group]]\nname = "a"\nrate = 5\ncommand = "PING"\ntier = "gold"\n')
    done = subprocess.run([str(binary("weir-load")), "--scenario", str(scenario)], capture_output=True, text=True, timeout=SECONDS_MAX)
    assert done.returncode == 2
    assert "line 5" in done.stderr and "'gold'" in done.stderr and "critical, standard, batch or sheddable" in done.stderr
