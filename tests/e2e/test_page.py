"""Tests of the admin port's page in a real browser, under load and with failing stores."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from harness import browser as browsers
from harness import metrics
from harness.browser import Browser, Page
from harness.placement import keys_by_backend
from harness.processes import Storage, Weir
from harness.waiting import until

pytestmark = pytest.mark.weir_only

HOSTILE = '</script><img src=x onerror="document.title=1">'
QUOTAS = """
[default]
[tenants.acme]
password = "acme-password"
ru_per_second = 50
"""
FLAGS = ["--shards", "2", "--hot-rate", "10", "--hot-share", "0%"]


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    assert browsers.path(), "chromium is not installed: tests/run setup"
    started = Browser()
    yield started
    started.close()


@pytest.fixture
def stores(servers) -> list[Storage]:
    return [servers.keep(Storage()).start() for _ in range(2)]


@pytest.fixture
def weir(servers, stores, tmp_path: Path) -> Weir:
    file = tmp_path / "quotas.toml"
    file.write_text(QUOTAS)
    return servers.weir(*stores, flags=[*FLAGS, "--quotas", str(file)])


class Load:
    """A client that sends requests one after the other until it is stopped."""

    def __init__(self, weir: Weir, *requests: tuple, login: str | None = None) -> None:
        self.weir, self.requests, self.login = weir, requests, login
        self.enough = threading.Event()
        self.thread = threading.Thread(target=self.run)

    def run(self) -> None:
        with self.weir.connect() as connection:
            if self.login:
                connection.ok("AUTH", self.login, f"{self.login}-password")
            while not self.enough.is_set():
                connection.pipeline(list(self.requests))

    def __enter__(self) -> Load:
        self.thread.start()
        return self

    def __exit__(self, *_) -> None:
        self.enough.set()
        self.thread.join()


def opened(browser: Browser, weir: Weir) -> Page:
    page = browser.page(f"http://127.0.0.1:{weir.admin_port}/")
    looked(page, 2)
    return page


def looked(page: Page, more: int) -> None:
    """Waits until the page has handled `more` further answers."""
    looks = "Number((document.body && document.body.dataset.looks) || 0)"
    before = page.run(looks)
    until(lambda: page.run(looks) >= before + more, "the page has figures")


def grade(page: Page) -> str:
    return page.run("document.body.dataset.grade")


def text(page: Page, place: str) -> str:
    return page.run(f"document.querySelector({json.dumps(place)}).innerText")


def rows(page: Page, section: str) -> list[list[str]]:
    found = f"[...document.querySelectorAll('#{section} tbody tr')].map(row => [...row.cells].map(cell => cell.textContent))"
    return page.run(found)


def clean(page: Page, weir: Weir) -> None:
    """Checks that the page has asked only weir, and that it has logged no errors."""
    hosts = {urlsplit(url).netloc for url in page.requests() if not url.startswith("about:")}
    assert hosts == {f"127.0.0.1:{weir.admin_port}"}
    assert page.complaints() == []


def test_the_page_shows_what_the_metrics_say(weir: Weir, browser: Browser):
    with Load(weir, *[("GET", f"k{n}") for n in range(20)], ("SET", "hot", "1"), *[("GET", "hot")] * 20):
        with Load(weir, ("GET", "a"), login="acme"):
            page = opened(browser, weir)
            until(lambda: any(row[1] == "acme" and "throttled" in row[0] for row in rows(page, "tenants")), "acme is throttled")
            until(lambda: any(row[1] == "hot" for row in rows(page, "keys")), "the key is hot")
            until(lambda: "key 'hot' is hot" in text(page, "#log"), "the log says so")
            assert grade(page) == "strained" and "Holding back" in text(page, "#verdict")
            assert "tenant acme" in text(page, "#reasons")
            assert float(text(page, "#rate").replace(",", "")) > 0
            assert len(page.run("[...document.querySelectorAll('#shards li')].map(each => each.innerText)")) == 2
    samples = metrics.parse(weir.admin("/metrics")[1])
    state = json.loads(weir.admin("/state.json")[1])
    since_start = state["requests"]["since_start"]
    assert since_start["decoded"] == sum(samples["weir_requests_total"].values()) > 0
    assert since_start["cached"] == sum(samples["weir_hot_hits_total"].values()) > 0
    refusals = samples["weir_refusals_total"]
    for reason in ("throttled", "overloaded", "deadline", "unavailable", "permission", "excess"):
        told = sum(value for labels, value in refusals.items() if f'reason="{reason}"' in labels)
        assert since_start[f"refused_{reason}"] == told, reason
    assert since_start["refused_throttled"] > 0
    cpu = samples["weir_shard_cpu_seconds_total"]
    for shard in state["shards"]:
        assert shard["cpu_seconds"] == pytest.approx(cpu[f'{{shard="{shard["shard"]}"}}'], abs=0.5) and shard["cpu_seconds"] > 0
    until(lambda: f"{since_start['decoded']:,}" in text(page, "#outcomes"), "the page says the same")
    assert {row[1] for row in rows(page, "stores")} == {store.address for store in weir.backends}
    until(lambda: grade(page) == "well", "all is well again")
    assert "All is well" in text(page, "#verdict")
    clean(page, weir)


def test_who_opens_the_page_sees_the_time_before(weir: Weir, browser: Browser):
    def noted() -> dict:
        return json.loads(weir.admin("/history.json")[1])

    with Load(weir, *[("GET", "hot")] * 20):
        until(lambda: noted()["hot_keys"] and noted()["tenants"] and len(noted()["points"]) >= 2, "figures are noted")
        page = opened(browser, weir)

        def plots(place: str) -> list[str]:
            return page.run(f"[...document.querySelectorAll('{place} path.line')].map(path => path.getAttribute('d') || '')")

        until(lambda: plots(".card") and all(plots(".card")), "the cards have lines at first sight")
        for section in ("stores", "tenants", "keys"):
            until(lambda: any(plots(f"#{section} td.plot")), f"{section} have lines")
        label = page.run("document.querySelector('#keys td.plot svg').getAttribute('aria-label')")
        assert label.startswith("reads a second of hot, last ten minutes: now "), label
    lists = noted()
    for series in ("requests_per_second", "refused_per_second", "reply_ms_p99"):
        assert len(lists[series]) == len(lists["points"]), series
    assert max(lists["requests_per_second"]) > 0
    foreign = {"Origin": "http://other.example", "Sec-Fetch-Site": "cross-site"}
    assert weir.admin_request("GET", "/history.json", headers=foreign)[0] == 403
    clean(page, weir)


def test_a_single_look_is_told_of_the_seconds_before(weir: Weir):
    with Load(weir, ("GET", "a"), login="acme"):

        def noted() -> bool:
            tenants = json.loads(weir.admin("/history.json")[1])["tenants"]
            return any(tenant["refused_ru_per_second"][-1] for tenant in tenants)

        until(noted, "figures are noted, while nobody looks at the present state")
        state = json.loads(weir.admin("/state.json")[1])
    assert state["period_ms"] >= 900
    assert state["verdict"]["grade"] == "strained" and state["requests"]["per_second"]["refused_throttled"] > 0, state["verdict"]


def test_trouble_is_seen_at_a_glance_at_every_size(weir: Weir, stores: list[Storage], browser: Browser):
    page = opened(browser, weir)
    until(lambda: grade(page) == "well", "all is well")
    folder = os.environ.get("WEIR_PICTURES")
    seen = {}
    placed = keys_by_backend(weir, "k")
    for state in ("well", "trouble"):
        if state == "trouble":
            stores[0].kill()
        with Load(weir, *[("GET", key) for store in stores for key in placed[store][:5]]):
            until(lambda: grade(page) == state, state)
            looked(page, 1)
            for width in (400, 1600):
                for scheme in ("light", "dark"):
                    page.look(width, scheme=scheme)
                    sizes = page.run("[document.documentElement.scrollWidth, innerWidth]")
                    assert sizes[0] <= sizes[1] == width, "nothing sticks out"
                    top = page.run("document.getElementById('verdict').getBoundingClientRect().bottom")
                    assert top < 200, "the verdict is at the top"
                    style = "getComputedStyle(document.querySelector('header'))"
                    look = page.run(f"{style}.backgroundColor + {style}.borderBottomStyle")
                    words = text(page, "#verdict")
                    seen.setdefault((width, scheme), []).append((look, words))
                    if folder:
                        Path(folder, f"{state}-{width}-{scheme}.png").write_bytes(page.picture())
            if state == "trouble":
                until(lambda: f"store {stores[0].address}" in text(page, "#reasons"), "the store is named")
                until(lambda: rows(page, "stores")[0][1] == stores[0].address, "the worst comes first")
                until(lambda: "■" in page.run("document.title"), "the title says so")
                until(lambda: f"backend {stores[0].address} is set aside" in text(page, "#log"), "the log says why")
    for well, trouble in seen.values():
        assert "● All is well" in well[1] and "■ Trouble" in trouble[1], "words and shapes"
        assert well[0] != trouble[0]
    clean(page, weir)


def test_what_others_made_up_is_text(weir: Weir, browser: Browser):
    key = HOSTILE + "\r\n\x1b[2J\u2028"
    refused = f'[tenants.{json.dumps(HOSTILE)}]\nru_per_second = "x"'
    assert weir.admin_request("POST", "/config/quotas", refused.encode())[0] == 400
    with Load(weir, *[("GET", key)] * 20):
        page = opened(browser, weir)
        until(lambda: any(row[1].startswith("</script><img") for row in rows(page, "keys")), "the key is shown")
        until(lambda: "</script><img" in text(page, "#log"), "so is the line")
        assert page.run("document.querySelectorAll('img, script').length") == 1, "only the page's own script"
        assert "weir" in page.run("document.title")
    status, body, headers = weir.admin_request("GET", "/state.json")
    assert status == 200 and "<" not in body and headers["x-content-type-options"] == "nosniff"
    clean(page, weir)


def test_it_is_used_by_keyboard(weir: Weir, browser: Browser):
    page = opened(browser, weir)
    page.run("document.body.focus()")
    reached = []
    for _ in range(20):
        page.press("Tab")
        reached.append(page.run("document.activeElement.getAttribute('aria-label') || document.activeElement.innerText"))
        outline = page.run("getComputedStyle(document.activeElement).outlineStyle")
        assert outline == "solid" or page.run("document.activeElement === document.body"), "one sees where one is"
    assert reached[0] == "To the stores"
    for name in ("Stores", "Tenants", "Hot keys", "Log, the newest first", "metrics"):
        assert name in reached, (name, reached)
    clean(page, weir)


def test_a_command_is_explained(weir: Weir, browser: Browser):
    page = opened(browser, weir)
    placed = keys_by_backend(weir, "k")
    for store, keys in placed.items():
        words = json.dumps(f'SET {keys[0]} "two words"')
        page.run(f"find('tenant').value = 'acme'; find('command').value = {words}; find('command').focus()")
        page.press("Enter")
        until(lambda: store.address in text(page, "#answer"), "it says where it goes")
        told = text(page, "#answer")
        assert "estimate.total" in told and "decides: the key is at home there" not in told, "its home was asked"
    before = metrics.parse(weir.admin("/metrics")[1])["weir_requests_total"]
    told = json.loads(weir.admin("/explain?tenant=acme&command=GET%20k")[1])
    assert told["command"].upper() == "GET" and told["scopes"][-1]["name"] == "acme"
    assert metrics.parse(weir.admin("/metrics")[1])["weir_requests_total"] == before, "nothing is done"
    for query, problem in (
        ("tenant=nobody&command=GET+k", "no tenant"),
        ("tenant=acme&command=NOSUCH", "unknown command"),
        ("", "is expected"),
        ("tenant=%3Cb%3E&command=GET+k", "no tenant"),
    ):
        status, body = weir.admin(f"/explain?{query}")
        assert status == 400 and problem in body and "<" not in body, body
    assert weir.admin_request("GET", "/explain?tenant=acme&command=PING", headers={"Origin": "http://evil.example"})[0] == 403
    page.run("find('tenant').value = 'nobody'")
    page.press("Enter")
    until(lambda: "there is no tenant 'nobody'" in text(page, "#answer"), "it says what is wrong")
    complaints = [str(each) for each in page.complaints()]
    assert all("400" in each for each in complaints), complaints


def test_a_weir_that_is_gone_is_trouble(weir: Weir, browser: Browser):
    page = opened(browser, weir)
    weir.kill()
    until(lambda: grade(page) == "trouble" and "No figures" in text(page, "#verdict"), "the page says so")
    assert "s old" in text(page, "#reasons")


def test_other_sites_are_told_nothing(weir: Weir):
    for headers in ({"Origin": "http://evil.example"}, {"Sec-Fetch-Site": "cross-site"}):
        assert weir.admin_request("GET", "/state.json", headers=headers)[0] == 403
    assert weir.admin_request("GET", "/", headers={"Host": "evil.example"})[0] == 421
    status, body, headers = weir.admin_request("GET", "/")
    policy = headers["content-security-policy"]
    assert status == 200 and "default-src 'none'" in policy and "frame-ancestors 'none'" in policy
    assert "unsafe" not in policy and headers["x-frame-options"] == "DENY"
    assert headers["x-content-type-options"] == "nosniff" and "access-control-allow-origin" not in headers
    assert "http:" not in body and "https:" not in body


def test_ten_thousand_tenants_are_looked_at_within_a_second(servers, tmp_path: Path):
    file = tmp_path / "quotas.toml"
    file.write_text("[default]\n" + "".join(f'[tenants.t{n}]\npassword = "x"\n' for n in range(10_000)))
    weir = servers.weir(flags=[*FLAGS, "--quotas", str(file)])
    state = json.loads(weir.admin("/state.json")[1])
    assert len(state["tenants"]) == 100 and state["tenants_left_out"] == 9_901
    assert len(weir.admin("/state.json")[1]) < 128 * 1024
    # The same holds after a request of each tenant, while the page polls.
    with weir.connect() as connection:
        for first in range(0, 10_000, 500):
            for number in range(first, first + 500):
                connection.send("AUTH", f"t{number}", "x")
                connection.send("SET", "k", "v")
            assert not any(connection.read().is_error for _ in range(1_000))
    sizes = [len(weir.admin("/state.json")[1]) for _ in range(5)]
    assert max(sizes) < 128 * 1024 and len(weir.admin("/")[1]) < 64 * 1024
    # The page polls once a second.
    assert "PERIOD_MS = 1000" in weir.admin("/")[1]
