"""The page, in a browser: it shows what the routes say, on a desk and on a phone, and runs nobody else's script."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from agentcache.plugin import frontend
from tests.observe.browser import Browser
from tests.observe.shown import HOSTILE, serving

SHOWN = (
    "document.querySelectorAll('.row').length > 10 && !document.getElementById('map').hidden "
    "&& document.getElementById('tiers').children.length > 0"
)


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with serving() as url:
        yield f"{url}/agentcache/"


def test_it_is_one_file_that_may_load_nothing_from_elsewhere(url: str) -> None:
    answer = httpx.get(url)
    policy = answer.headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "connect-src 'self'" in policy
    assert "unsafe" not in policy
    assert not re.findall(r"""(?:src|href|url)\s*[=(]""", answer.text)
    assert httpx.get(url.rstrip("/"), follow_redirects=True).text == answer.text


@pytest.mark.parametrize(("width", "height", "mobile"), [(1280, 800, False), (390, 844, True)])
def test_it_shows_requests_files_and_figures(url: str, width: int, height: int, mobile: bool) -> None:
    with Browser(width, height, mobile=mobile, dark=mobile) as browser:
        browser.open(url)
        browser.wait(SHOWN)
        assert browser.run("document.documentElement.scrollWidth") == width, "nothing sticks out"
        assert browser.run("document.getElementById('hit').textContent").endswith("%")
        assert browser.run("document.getElementById('ttft-note').textContent").startswith("14.2 ×")
        assert browser.run("document.getElementById('trouble').hidden")
        assert browser.run("places.length > 100 && places.every(([x, y, w, h]) => w >= 0 && h >= 0)")
        background = browser.run("getComputedStyle(document.body).backgroundColor")
        assert (background == "rgb(16, 19, 24)") == mobile, "dark where it is asked for"
        assert browser.complaints() == []


def test_spans_are_to_scale_and_say_their_names(url: str) -> None:
    with Browser(1280, 800) as browser:
        browser.open(url)
        browser.wait(SHOWN)
        request = httpx.get(f"{url}requests?limit=1").json()["requests"][0]
        longest = browser.run("Math.max(...requests.map((r) => r.prompt_tokens))")
        bar = "document.querySelector('.prompt')"
        share = browser.run(
            f"{bar}.getBoundingClientRect().width / {bar}.parentNode.getBoundingClientRect().width"
        )
        assert share == pytest.approx(request["prompt_tokens"] / longest, abs=0.01)
        for number, span in enumerate(request["reused"]):
            node = f"{bar}.querySelectorAll('i.reused')[{number}].getBoundingClientRect()"
            width = browser.run(f"{node}.width / {bar}.getBoundingClientRect().width")
            assert width == pytest.approx((span["stop"] - span["start"]) / request["prompt_tokens"], abs=0.01)
        browser.hover(*browser.run(f"[{node}.right - 2, {node}.top + 6]"))
        tip = browser.run("document.getElementById('tip').textContent")
        assert tip.startswith(f"{span['path']}#{span['name']}" if "path" in span else span["learned"])


def test_hostile_names_and_texts_stay_text(url: str) -> None:
    with Browser(1280, 800) as browser:
        browser.open(url)
        browser.wait(SHOWN)
        assert browser.run(
            "[...document.querySelectorAll('.why')].some((n) => n.textContent.includes('<b>09:14</b>'))"
        )
        browser.run(
            f"show(describe({{path: {HOSTILE!r}, name: '<script>alert(1)</script>'}}), {{clientX: 9, clientY: 9}})"
        )
        assert HOSTILE in browser.run("document.getElementById('tip').textContent")
        assert browser.run(f"places.some((place) => place[4].path === {HOSTILE!r})")
        assert browser.run("document.querySelectorAll('img, iframe, .row script').length") == 0
        assert browser.run("document.title") == "agentcache"
        assert browser.complaints() == []


def test_a_server_that_has_done_nothing_yet_and_one_that_is_gone() -> None:
    with serving(empty=True) as url, Browser(1280, 800) as browser:
        browser.open(f"{url}/agentcache/")
        browser.wait("document.getElementById('model').textContent === 'm'")
        assert "No requests yet" in browser.run("document.getElementById('rows').textContent")
        assert browser.run("document.getElementById('map').hidden")
        assert browser.complaints() == []
        browser.run("window.fetch = () => Promise.reject(new Error('refused'))")
        browser.wait("document.getElementById('trouble').textContent.includes('refused')")


def test_a_picture_can_be_taken_of_it(url: str, tmp_path: Path) -> None:
    with Browser(1280, 800) as browser:
        browser.open(url)
        browser.wait(SHOWN)
        browser.screenshot(tmp_path / "page.png")
    data = (tmp_path / "page.png").read_bytes()
    assert data.startswith(b"\x89PNG")
    assert len(data) > 50_000, "something is on it"


def test_requests_can_be_asked_for_by_number(url: str) -> None:
    all_of_them = httpx.get(f"{url}requests?limit=1000").json()
    assert all_of_them["kept"] == len(all_of_them["requests"]) == len(frontend.LOG) == 40
    assert httpx.get(f"{url}requests?limit=3").json()["requests"] == all_of_them["requests"][:3]
    assert httpx.get(f"{url}requests?limit=0").status_code == 422
    times = [one["finished_at"] for one in all_of_them["requests"]]
    assert times == sorted(times, reverse=True)
