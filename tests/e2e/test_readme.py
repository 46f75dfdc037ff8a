"""What README.md says beside its tour: the files that it names are there, and weir prints the lines that it quotes."""

from __future__ import annotations

import re

import pytest

from harness.processes import ROOT

pytestmark = pytest.mark.weir_only

README = (ROOT / "README.md").read_text()
# A line in the source may go on in the next.
CONTINUED = re.compile(r"\\\n\s*")


def section(title: str) -> str:
    found = re.search(rf"^## {re.escape(title)}\n(.*?)^## ", README, re.DOTALL | re.MULTILINE)
    assert found, title
    return found[1]


def rows(text: str) -> list[list[str]]:
    lines = [line for line in text.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:]]


def test_each_yes_beside_others_has_something_that_shows_it():
    table = rows(section("Beside others"))
    assert len(table) > 15
    for feature, weir, shown_by, *_ in table:
        files = re.findall(r"`([^`]+)`", shown_by)
        assert weir.startswith("no") or files, feature
        for file in files:
            assert (ROOT / file).is_file(), file


def test_the_lines_that_it_explains_are_lines_of_weir():
    source = "\n".join(file.read_text() for file in sorted((ROOT / "src").rglob("*.rs")))
    # Where a value stands in a line, its text ends.
    source = re.sub(r"\{[^{}\n]*\}", "...", CONTINUED.sub("", source))
    table = rows(section("When something is wrong"))
    assert len(table) > 12
    for said, *_ in table:
        for quoted in re.findall(r"`([^`]+)`", said):
            parts = [part.strip(" -'") for part in re.split(r"\.\.\.|=", quoted)]
            missing = [part for part in parts if part and part not in source]
            assert not missing, f"{quoted}: {missing}"


def test_links_lead_somewhere():
    titles = re.findall(r"^##+ (.*)$", README, re.MULTILINE)
    headings = {re.sub(r"[^\w -]", "", title).strip().lower().replace(" ", "-") for title in titles}
    for target in re.findall(r"\]\(([^)]+)\)", README):
        if target.startswith("#"):
            assert target[1:] in headings, target
        elif not target.startswith("http"):
            assert (ROOT / target).exists(), target
