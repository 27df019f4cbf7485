"""The pages as a browser and as a person with a screen reader meet them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from stages import stages_of
from tests.fake_training import climbed
from tests.review.browser import Browser, axe_source, browser
from trn_validate.review.compare import show_comparison
from trn_validate.review.documents import write_documents
from trn_validate.review.index import write_index

PAGES = ("report", "compare", "index")
SERIOUS = ("serious", "critical")


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("pages")
    with climbed(folder) as rig:
        write_documents(rig.run, rig.plan, rig.gate.standings(), stages_of)
        compared = folder / "compared.html"
        show_comparison([rig.run.folder] * 2, stages_of, html=compared)
        write_index(rig.store.root, stages_of)
        return {
            "report": rig.run.folder / "report.html",
            "compare": compared,
            "index": rig.store.root / "index.html",
        }


@pytest.fixture(scope="module")
def opened(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with browser(tmp_path_factory.mktemp("browser")) as found:
        yield found


@pytest.mark.parametrize("name", PAGES)
def test_a_page_asks_for_nothing_and_complains_of_nothing(
    opened: Browser, pages: dict[str, Path], name: str
) -> None:
    opened.requests(), opened.console()
    opened.open(pages[name])
    assert opened.requests() == []
    assert opened.console() == []


def test_a_request_and_a_complaint_would_be_seen(opened: Browser, tmp_path: Path) -> None:
    page = tmp_path / "bad.html"
    page.write_text(
        '<!doctype html><img src="http://127.0.0.1:9/x.png"><script>missing()</script>',
        encoding="utf-8",
    )
    opened.open(page)
    assert opened.requests() == ["http://127.0.0.1:9/x.png"]
    assert any("missing" in line for line in opened.console())


@pytest.mark.parametrize("width", [1280, 390])
@pytest.mark.parametrize("name", PAGES)
def test_a_page_never_scrolls_sideways(
    opened: Browser, pages: dict[str, Path], name: str, width: int
) -> None:
    opened.size(width)
    opened.open(pages[name])
    for unfolded in (False, True):
        if unfolded:
            opened.run("document.querySelectorAll('details').forEach(d => d.open = true)")
        wide = opened.run("return document.documentElement.scrollWidth")
        assert wide <= width, f"unfolded: {unfolded}"


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("name", PAGES)
def test_axe_finds_nothing_serious(
    opened: Browser,
    pages: dict[str, Path],
    name: str,
    scheme: str,
    axe: str,
) -> None:
    opened.size(1280)
    opened.scheme(scheme)
    opened.open(pages[name])
    # One of each kind: with all of them open it looks for a minute.
    opened.run("document.querySelectorAll('details:nth-of-type(-n+2)').forEach(d => d.open = true)")
    opened.run(axe)
    found = opened.run("return axe.run()")
    assert found["passes"], "axe looked at nothing"
    bad = [(v["id"], v["nodes"][0]["html"]) for v in found["violations"] if v["impact"] in SERIOUS]
    assert bad == []


def test_axe_finds_what_is_bad(opened: Browser, tmp_path: Path, axe: str) -> None:
    page = tmp_path / "bad.html"
    page.write_text(
        '<!doctype html><p style="color: #ccc; background: #fff">faint</p><img src="data:,">',
        encoding="utf-8",
    )
    opened.open(page)
    opened.run(axe)
    found = opened.run("return axe.run()")
    assert {v["id"] for v in found["violations"]} >= {"color-contrast", "image-alt"}


@pytest.fixture(scope="module")
def axe(tmp_path_factory: pytest.TempPathFactory) -> str:
    return axe_source(tmp_path_factory.mktemp("axe"))
