"""Tests of README.md and docs/: links and named files exist, weir prints the quoted lines, and all alerts are documented."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from harness.flags import defaults as flags_of_help
from harness.processes import ROOT, binary

pytestmark = pytest.mark.weir_only

README_LINES_MAX = 150
README = ROOT / "README.md"
COMPARISON = ROOT / "docs" / "comparison.md"
CONFIGURATION = ROOT / "docs" / "operating" / "configuration.md"
TROUBLESHOOTING = ROOT / "docs" / "operating" / "troubleshooting.md"
PAGES = [README, *sorted((ROOT / "docs").rglob("*.md"))]
# Further pages, whose links into README.md and docs/ are checked too.
OTHERS = [ROOT / "HACKING.md", ROOT / "ARCHITECTURE.md", ROOT / "CHANGELOG.md", ROOT / "perf" / "README.md"]
# A string in the source may continue on the next line.
CONTINUED = re.compile(r"\\\n\s*")
# A placeholder for a value in a format string.
PLACE = re.compile(r"\{[^{}\n]*\}")
FENCED = re.compile(r"^```.*?^```$", re.DOTALL | re.MULTILINE)
LINK = re.compile(r"\]\(([^)\s]+)\)")


def section(page: Path, title: str) -> str:
    found = re.search(rf"^## {re.escape(title)}\n(.*?)(?=^## |\Z)", page.read_text(), re.DOTALL | re.MULTILINE)
    assert found, f"{page}: {title}"
    return found[1]


def rows(text: str) -> list[list[str]]:
    """Returns the cells of all table rows in a text, without the heads."""
    found, above = [], 0
    for line in text.splitlines():
        above = above + 1 if line.startswith("|") else 0
        if above > 2:
            # A bar within `...` does not separate cells.
            found.append([cell.strip() for cell in re.split(r"\|(?=(?:[^`]*`[^`]*`)*[^`]*$)", line.strip()[1:-1])])
    return found


def anchors(page: Path) -> set[str]:
    """Returns the anchors of a page's headings."""
    titles = re.findall(r"^##* (.*)$", FENCED.sub("", page.read_text()), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", title).strip().lower().replace(" ", "-") for title in titles}


def source() -> str:
    """Returns the text of weir's Rust files, with `...` in place of each value in a string."""
    text = "\n".join(file.read_text() for file in sorted((ROOT / "src").rglob("*.rs")))
    return PLACE.sub("...", CONTINUED.sub("", text))


def test_the_readme_is_short():
    assert len(README.read_text().splitlines()) <= README_LINES_MAX


@pytest.mark.parametrize("page", [*PAGES, *OTHERS], ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page):
    for target in LINK.findall(FENCED.sub("", page.read_text())):
        if target.startswith(("http:", "https:")):
            continue
        path, _, anchor = target.partition("#")
        file = (page.parent / path).resolve() if path else page
        assert file.exists(), target
        if anchor:
            assert anchor in anchors(file), target


def test_every_page_is_in_an_index():
    operating = ROOT / "docs" / "operating"
    listed = LINK.findall((operating / "README.md").read_text())
    assert {page.name for page in operating.glob("*.md")} - set(listed) == {"README.md"}


def test_each_yes_beside_others_has_something_that_shows_it():
    table = rows(section(COMPARISON, "Beside others"))
    assert len(table) > 15
    for feature, weir, shown_by, *_ in table:
        files = re.findall(r"`([^`]+)`", shown_by)
        assert weir.startswith("no") or files, feature
        for file in files:
            assert (ROOT / file).is_file(), file


def test_files_that_pages_name_exist():
    folders = "src|tests|tools|perf|docs|benches"
    for page in PAGES:
        for file in re.findall(rf"`((?:{folders})/[\w./-]+\.\w+)`", page.read_text()):
            assert (ROOT / file).exists(), f"{page}: {file}"


def test_the_lines_that_are_explained_are_lines_of_weir():
    text = source()
    # Alerts are not output of weir; the tables of HTTP statuses and of reasons begin with words of their own.
    page = TROUBLESHOOTING.read_text().split("\n## Alerts\n")[0]
    said = [quoted for row in rows(page) for quoted in re.findall(r"`([^`]+)`", row[0])]
    said += re.findall(r"^### `([^`]+)`$", page, re.MULTILINE)
    assert len(said) > 80
    for quoted in said:
        if quoted.endswith("="):
            continue
        parts = [part.strip(" -'") for part in re.split(r"\.\.\.|=", PLACE.sub("...", quoted))]
        # The code of an error may stand elsewhere in the source than its text.
        missing = [part for part in parts if part and part.removeprefix("ERR ") not in text]
        assert not missing, f"{quoted}: {missing}"


def test_every_reason_of_a_refusal_is_explained():
    explained = set(re.findall(r"`([a-z-]+)`", TROUBLESHOOTING.read_text()))
    rooms = [ROOT / "src" / "shard" / room for room in ("upstream", "links", "private")]
    backends = "\n".join(file.read_text() for room in rooms for file in sorted(room.glob("*.rs")))
    refusals = (ROOT / "src" / "shard" / "refusal.rs").read_text()
    lost = re.findall(r'(?:drop_links?|lose_links?|lose|give_up|Failed|then_some)\([^;]*?"([a-z]+(?:-[a-z]+)+)"', backends)
    lost += [word for either in re.findall(r'reason = if [^{]*\{ "([a-z-]+)" \} else \{ "([a-z-]+)" \}', backends) for word in either]
    told = re.findall(r'reason: "([a-z-]+)"|=> "([a-z-]+)"|(?:overloaded|full)\("([a-z-]+)"', refusals)
    # A read for a replica that is silent, or is no replica, goes to the primary, so clients never see these reasons.
    reasons = {*lost, *(word for words in told for word in words if word)} - {"silent", "no-replica"}
    assert len(reasons) > 15
    assert reasons <= explained, reasons - explained


def test_every_alert_is_explained():
    alerts = set(re.findall(r"- alert: (\w+)", (ROOT / "tools" / "deploy" / "alerts.yml").read_text()))
    explained = [re.findall(r"`(\w+)`", row[0])[0] for row in rows(section(TROUBLESHOOTING, "Alerts"))]
    assert sorted(explained) == sorted(alerts)


def test_every_reason_against_a_command_is_explained():
    reasons = (ROOT / "src" / "protocol" / "command" / "handling.rs").read_text()
    function = re.search(r"pub const fn reason\(self\).*?^    \}$", reasons, re.DOTALL | re.MULTILINE)
    assert function
    texts = set(re.findall(r'"([^"]+)"', function[0])) - {"is about a cluster, and weir acts as a single server"}
    page = TROUBLESHOOTING.read_text()
    assert len(texts) > 10 and not [text for text in texts if f"`{text}`" not in page]


def test_tables_of_flags_are_those_that_weir_pages_writes(tmp_path):
    page = tmp_path / "configuration.md"
    page.write_text(CONFIGURATION.read_text())
    subprocess.run([binary("weir-pages"), "--flags", page], check=True, timeout=60)
    assert page.read_text() == CONFIGURATION.read_text(), "weir-pages --flags docs/operating/configuration.md"
    rows_of_flags = [row for row in rows(page.read_text()) if row[0].startswith("`--")]
    assert len(rows_of_flags) == len(flags_of_help()) > 60


def test_tests_that_are_named_exist():
    """For each promise, a page names a test that exists."""
    defined = {name for file in (ROOT / "tests" / "e2e").glob("test_*.py") for name in re.findall(r"^def (test_\w+)", file.read_text(), re.MULTILINE)}
    named = {(page.name, name) for page in PAGES for name in re.findall(r"`(test_\w+)`", page.read_text())}
    assert len(named) > 40
    assert sorted((page, name) for page, name in named if name not in defined) == []


def test_planted_bugs_fit_the_code_and_their_page_is_up_to_date():
    folder = ROOT / "tests" / "planted"
    entries = tomllib.loads((folder / "bugs.toml").read_text())["bug"]
    assert len(entries) >= 40
    for entry in entries:
        assert (ROOT / entry["file"]).read_text().count(entry["good"]) == 1, entry["what"]
        assert entry["caught_by"], entry["what"]
    printed = subprocess.run([sys.executable, folder / "run", "--table"], check=True, capture_output=True, text=True).stdout
    page = (ROOT / "docs" / "design" / "planted-bugs.md").read_text()
    assert page == printed, "tests/planted/run --table > docs/design/planted-bugs.md"
