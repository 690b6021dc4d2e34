"""The page in a real browser: updates, screen sizes, keyboard and screen reader."""

from __future__ import annotations

import json
import re
import time
from pathlib import Path

import pytest

from otel_gpu.export.document import to_json
from tests.real.chromium import PATIENCE_S, Browser, Tab
from tests.real.page_view import (
    CARDS,
    LOW_CONTRAST,
    MISALIGNED_PLOTS,
    NAMES,
    NARROW,
    SMALL_TARGETS,
    SPLIT_CELLS,
    TABLE,
    UNFILLED_LISTS,
    WIDE,
    WRAPPED_TEXT,
    assert_clean,
    choose_theme,
    is_current,
    open_page,
)
from tests.real.stepped_agent import SteppedAgent, stepped_agent

pytestmark = pytest.mark.real


# ---------------------------------------------------------------------------- updates and plots


def test_the_length_of_a_bar_is_the_share_of_memory(browser: Browser, demo: SteppedAgent) -> None:
    tab = open_page(browser, demo)
    gpu = json.loads(to_json(demo.now()))["gpus"][3]
    drawn = tab.value(
        "[...document.querySelectorAll('.gpu')[3].querySelector('.bar').children].map("
        "node => [node.className.split(' ')[1], Number(node.style.flexGrow)])"
    )
    by_kind = {kind: sum(length for each, length in drawn if each == kind) for kind, _ in drawn}
    limit = gpu["memory"]["limit"]
    for kind, length in by_kind.items():
        assert length == pytest.approx(gpu["memory"][kind] / limit, rel=1e-4)
    assert {"measured", "inferred", "reserved", "free"} <= by_kind.keys()
    assert sum(by_kind.values()) == pytest.approx(1, rel=1e-4)


def test_a_new_cycle_is_shown_without_a_request(browser: Browser, demo: SteppedAgent) -> None:
    tab = open_page(browser, demo)
    before = len(tab.requests)
    for _ in range(3):
        demo.advance(5)
        tab.until(is_current(demo))
    assert len(tab.requests) == before
    assert (
        tab.value("document.getElementById('announcement').textContent") == ""
    )  # a screen reader does not read every cycle


def test_a_paused_page_keeps_its_cycle_and_continues_with_the_newest(browser: Browser, demo: SteppedAgent) -> None:
    tab = open_page(browser, demo)
    held, rows = demo.now().wall_ns, tab.value(TABLE)
    plotted = tab.value("document.querySelector('.plot .line').getAttribute('d')")
    tab.value("document.getElementById('pause').click()")
    for _ in range(2):
        demo.advance(5)
        tab.until(f"performance.now() > {tab.value('performance.now()')} + 200")
    assert tab.value("document.getElementById('main').dataset.cycle") == str(held)
    assert tab.value(TABLE) == rows
    assert tab.value("document.getElementById('pause').ariaPressed") == "true"
    assert tab.value("document.getElementById('updated').textContent").startswith("paused, as of ")
    tab.value("document.getElementById('pause').click()")
    tab.until(is_current(demo))
    assert tab.value("document.getElementById('updated').textContent").startswith("as of ")
    # The plot has the cycles during the pause.
    assert tab.value("document.querySelector('.plot .line').getAttribute('d')") != plotted
    assert_clean(tab, demo.url)


def test_a_hidden_page_holds_no_connection_and_is_current_when_it_is_visible(browser: Browser) -> None:
    with stepped_agent() as agent:
        tab = open_page(browser, agent)
        assert agent.is_followed()
        turn = "Object.defineProperty(document, 'hidden', {{value: {}, configurable: true}});"
        turn += "document.dispatchEvent(new Event('visibilitychange'))"
        tab.value(turn.format("true"))
        deadline_s = time.monotonic() + PATIENCE_S
        while agent.is_followed():
            assert time.monotonic() < deadline_s
        agent.advance(5)
        tab.value(turn.format("false"))
        tab.until(is_current(agent))
        assert_clean(tab, agent.url)


def test_the_last_hour_is_plotted_and_survives_a_reload(browser: Browser, demo: SteppedAgent) -> None:
    line = "document.querySelector('.gpu .plot .line').getAttribute('d')"
    tab = open_page(browser, demo)
    drawn = tab.value(line)
    assert drawn.count("L") >= 5
    tab.command("Page.reload")
    tab.until(f"{is_current(demo)} && performance.now() < 30000")
    assert tab.until(line) == drawn
    words = tab.value("document.querySelector('.gpu .plot').getAttribute('aria-label')")
    assert words.startswith("Utilisation in the last hour: lowest ")
    assert tab.value("document.querySelector('.gpu .plot title').textContent") == words
    said = tab.value("[...document.querySelectorAll('.gpu .hour')].map(node => node.innerText)")
    cards = tab.value(CARDS)
    shown = [figure for card in cards for figure in card["figures"][:3]]
    assert said == ["last hour" if figure else "last hour: unknown" for figure in shown]
    assert "last hour: unknown" in said  # the utilisation of a GPU with instances


def test_a_plot_draws_means_and_keeps_the_peaks_between_them(browser: Browser, demo: SteppedAgent) -> None:
    tab = open_page(browser, demo)
    drawn = tab.value("""(async () => {
      const {createPlot, updatePlot, History} = await import('/static/plots.js');
      const [plot, history] = [createPlot(), new History()];
      history.add({at: [0, 15, 30], gpus: {g: [[[20, 10, 60], null, null], [[40, 30, 90], null, null], null]}}, 3600);
      updatePlot(plot, history.of('g', 0), {top: 100, label: 'Power in the last hour'},
        {plot_span_s: 3600, plot_gap_s: 37.5});
      const path = name => plot.querySelector(`.${name}`).getAttribute('d');
      return [plot.getAttribute('aria-label'), path('line'), path('range')];
    })()""")
    assert drawn[0] == "Power in the last hour"
    assert drawn[1] == "M238.0,31.4L239.0,23.8"  # 100 W are 40 units, less one at each edge
    assert drawn[2] == "M238.0,16.2L239.0,4.8L239.0,27.6L238.0,35.2Z"


def test_without_the_sorted_column_the_order_is_by_memory(browser: Browser, demo: SteppedAgent) -> None:
    tab = open_page(browser, demo)
    tab.value("document.querySelector('#columns [data-key=cost] button').click()")
    unpriced = """(async () => {
      const {Workloads} = await import('/static/workloads.js');
      document.getElementById('columns').replaceChildren();
      document.getElementById('rows').replaceChildren();
      const table = new Workloads(() => {});
      const columns = ['memory', 'cost'].map(key => ({key, name: key, meaning: key, is_number: true}));
      const sort = {column: 'memory', descending: true};
      const texts = ['all_workloads', 'found_workloads', 'further_workloads', 'ascending', 'descending'];
      const words = Object.fromEntries(texts.map(name => [name, name]));
      const view = {columns, sort, process_columns: [], workloads: [], no_workloads: '', words};
      table.update(view);
      document.querySelector('#columns [data-key=cost] button').click();
      table.update({...view, columns: columns.slice(0, 1)});
      return document.querySelector('#columns [aria-sort=descending]').dataset.key;
    })()"""
    assert tab.value(unpriced) == "memory"


def test_tooltips_say_how_figures_were_obtained(browser: Browser, demo: SteppedAgent) -> None:
    tab = open_page(browser, demo)
    how = {row["name"]: row["how"] for row in tab.value(TABLE)}
    assert re.search(r"GiB inferred \(confidence \d+ %\), from open devices", how["host"]["memory"])
    assert "estimated (shared with others)" in how["vllm-chat"]["power"]
    assert "GiB measured, by the driver's process lists" in how["vllm-chat"]["memory"]
    assert "to the byte" in tab.value("document.querySelector('.gpu details').textContent")


# ---------------------------------------------------------------------------- interaction


def test_a_click_on_a_heading_sorts_and_a_second_click_reverses(browser: Browser, demo: SteppedAgent) -> None:
    tab = open_page(browser, demo)
    for key in ("memory", "sm", "power", "energy", "idle", "cost", "gpu", "state"):
        tab.value(f"document.querySelector('#columns [data-key={key}] button').click()")
        if key == "memory":  # the initial order, which the click reversed
            tab.value("document.querySelector('#columns [data-key=memory] button').click()")
        for _ in range(2):
            column = [row[key] for row in tab.value(TABLE)]
            known = [value if key in ("gpu", "state") else float(value) for value in column if value is not None]
            down = tab.value(f"document.querySelector('#columns [data-key={key}]').ariaSort") == "descending"
            assert known == sorted(known, reverse=down), key
            assert None not in column[: len(known)], key  # unknown values are last in both directions
            tab.value(f"document.querySelector('#columns [data-key={key}] button').click()")
    assert tab.value("document.querySelectorAll('#columns [aria-sort]:not([aria-sort=none])').length") == 1


def test_a_filter_shows_workloads_that_match_every_word(browser: Browser, demo: SteppedAgent) -> None:
    tab = open_page(browser, demo)
    count = len(tab.value(NAMES))
    tab.value("document.getElementById('filter').focus()")
    tab.insert_text("research gpu1")
    assert set(tab.value(NAMES)) == {"trainer", "notebook (analysis-0)"}
    assert tab.value("document.getElementById('count').textContent") == f"2 of {count} workloads"
    tab.insert_text(" no-such-name")
    assert tab.value(NAMES) == []
    assert tab.value("document.getElementById('no-workloads').innerText") == "No workload matches this filter."
    demo.advance(5)
    tab.until(is_current(demo))
    assert tab.value(NAMES) == []  # the next cycle keeps the filter
    assert tab.value("document.activeElement.id") == "filter"


def test_a_filter_matches_as_in_top(browser: Browser, demo: SteppedAgent) -> None:
    table = json.loads((Path(__file__).parents[1] / "filter_cases.json").read_text(encoding="utf-8"))
    tab = open_page(browser, demo)
    matched = tab.value(f"""(async () => {{
      const {{parseFilter, matches}} = await import('/static/filter.js');
      const {{workload, cases}} = {json.dumps(table)};
      return cases.map(({{filter}}) => matches(workload, parseFilter(filter)));
    }})()""")
    assert dict(zip((case["filter"] for case in table["cases"]), matched, strict=True)) == {
        case["filter"]: case["matches"] for case in table["cases"]
    }


def test_workloads_are_sorted_as_in_top(browser: Browser, demo: SteppedAgent) -> None:
    table = json.loads((Path(__file__).parents[1] / "sort_cases.json").read_text(encoding="utf-8"))
    tab = open_page(browser, demo)
    sorted_, chosen = tab.value(f"""(async () => {{
      const {{ordered, chosen}} = await import('/static/sort.js');
      const {{columns, rows, orders, choices}} = {json.dumps(table)};
      const drawn = rows.map(row => ({{...row, cells: row.values.map(value => ({{value}}))}}));
      const columnOf = key => columns.find(column => column.key === key);
      return [
        orders.map(({{sort}}) => ordered(columns, drawn, sort).map(row => row.key)),
        choices.map(({{sort, column}}) => chosen(sort, columnOf(column))),
      ];
    }})()""")
    assert sorted_ == [case["keys"] for case in table["orders"]]
    assert chosen == [case["then"] for case in table["choices"]]


def test_a_filter_for_a_gpu_shows_the_workloads_on_it(browser: Browser, demo: SteppedAgent) -> None:
    tab = open_page(browser, demo)
    document = json.loads(to_json(demo.now()))
    index_of = {gpu["uuid"]: gpu["index"] for gpu in document["gpus"]}
    tab.value("document.getElementById('filter').focus()")
    typed = "document.getElementById('filter')"
    for index in (0, 1, 2, 3, 10):
        on_it = [
            each["id"] for each in document["workloads"] if index in {index_of[part["uuid"]] for part in each["gpus"]}
        ]
        for text in (f"gpu {index}", f"GPU{index}"):
            tab.value(f"{typed}.value = ''")
            tab.insert_text(text)
            assert {row["id"] for row in tab.value(TABLE)} == set(on_it), text
        assert bool(on_it) is (index < 10)
    hashed = next(each["id"] for each in document["workloads"] if len(each["id"]) == 64)
    for text, found in ((hashed[:12], 1), (hashed[12:24], 0)):
        tab.value(f"{typed}.value = ''")
        tab.insert_text(text)
        assert len(tab.value(NAMES)) == found, text  # an id matches by its prefix


def test_a_workload_can_be_expanded_by_keyboard_and_stays_expanded(browser: Browser, demo: SteppedAgent) -> None:
    tab = open_page(browser, demo)
    for _ in range(60):
        tab.press("Tab", 9)
        if tab.value("document.activeElement.textContent") == "trainer":
            break
    assert tab.value("document.activeElement.matches(':focus-visible')")
    assert tab.value("getComputedStyle(document.activeElement).outlineStyle") == "solid"
    tab.press("Enter", 13, text="\r")
    assert tab.value("document.activeElement.getAttribute('aria-expanded')") == "true"
    processes = "[...document.querySelectorAll('.details tbody tr')].map(row => row.querySelector('data').value)"
    assert tab.value(processes) == ["52312", "52311", "52310"]
    facts = tab.value(
        "Object.fromEntries([...document.querySelectorAll('.facts dl > div')].map("
        "pair => [pair.querySelector('dt').textContent, pair.querySelector('dd').textContent]))"
    )
    assert facts["Pod"] == "finetune-13b-worker-0"
    assert facts["Memory"].endswith(" measured, by the driver's process lists")
    demo.advance(5)
    tab.until(is_current(demo))
    assert tab.value(processes) == ["52312", "52311", "52310"]
    assert tab.value("document.activeElement.textContent") == "trainer"
    tab.press(" ", 32, text=" ")
    assert tab.value("document.querySelectorAll('.details').length") == 0
    assert_clean(tab, demo.url)


def test_the_theme_is_the_systems_until_the_user_selects_one(browser: Browser, demo: SteppedAgent) -> None:
    background = "getComputedStyle(document.body).backgroundColor"
    tab = open_page(browser, demo, dark=False)
    light = tab.value(background)
    tab.emulate(width=WIDE, dark=True)
    dark = tab.until(f"{background} !== '{light}' && {background}")
    tab.value(choose_theme("light"))
    assert tab.value(background) == light
    tab.open(demo.url)
    tab.until(f"document.getElementById('theme')?.value === 'light' && {is_current(demo)}")
    assert tab.value(background) == light
    tab.value(choose_theme("auto"))
    assert tab.value(background) == dark


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("width", [1920, WIDE, 1100, 1025, 912, 820, 768, NARROW, 320])
def test_on_every_screen_size_the_page_fits_and_text_is_readable(
    browser: Browser, demo: SteppedAgent, tmp_path: Path, width: int, dark: bool
) -> None:
    tab = open_page(browser, demo, width=width, dark=dark)
    for name in ("trainer", "ollama"):
        tab.value(f"[...document.querySelectorAll('.open')].find(b => b.textContent === '{name}').click()")
    tab.value("document.querySelector('.gpu summary').click()")
    assert tab.value("document.documentElement.scrollWidth") <= width
    assert tab.value(WRAPPED_TEXT) == []
    assert tab.value(MISALIGNED_PLOTS) == []
    assert tab.value(UNFILLED_LISTS) == []
    assert width < NARROW or tab.value(SPLIT_CELLS) == []
    assert tab.value(SMALL_TARGETS) == []
    assert tab.value(LOW_CONTRAST) == []
    assert len(tab.screenshot(tmp_path / "page.png")) > 10_000
    assert_clean(tab, demo.url)


@pytest.mark.parametrize("width", [WIDE, 820, NARROW])
def test_on_narrow_screens_a_link_leads_to_the_workloads(browser: Browser, demo: SteppedAgent, width: int) -> None:
    tab = open_page(browser, demo, width=width)
    assert tab.value("document.querySelector('.jump').checkVisibility()") is (width < WIDE)
    if width < WIDE:
        assert tab.value("document.querySelector('.jump').getBoundingClientRect().bottom < innerHeight")
        tab.value("document.querySelector('.jump').click()")
        tab.until("Math.abs(document.getElementById('workloads').getBoundingClientRect().top) < 2")


def test_a_screen_reader_finds_a_table_with_headings_and_landmarks(browser: Browser, demo: SteppedAgent) -> None:
    tab = open_page(browser, demo, width=NARROW)
    tab.command("Accessibility.enable")
    nodes = tab.command("Accessibility.getFullAXTree")["nodes"]
    heard = [(node["role"]["value"], node.get("name", {}).get("value")) for node in nodes if not node["ignored"]]
    roles = {role for role, _ in heard}
    assert {"banner", "main", "contentinfo", "navigation", "status", "table", "columnheader", "rowheader"} <= roles
    assert ("table", "Workloads") in heard
    assert ("searchbox", "Filter") in heard
    assert ("combobox", "Theme") in heard
    assert any(
        role == "image" and str(name).startswith("Memory of 80.0 GiB: vllm-chat 54.0 GiB") for role, name in heard
    )
    assert all(name for role, name in heard if role in ("button", "image", "table", "searchbox", "combobox"))
    assert {"Memory", "trainer"} <= {name for role, name in heard if role == "button"}  # without the triangle


def test_a_simulated_host_is_labelled(browser: Browser, demo: SteppedAgent) -> None:
    tab = open_page(browser, demo)
    assert "no figure here is from a real GPU" in tab.value("document.getElementById('simulated').innerText")


def test_without_scripts_the_page_is_a_table(browser: Browser, demo: SteppedAgent) -> None:
    tab = Tab(browser, scripts=False)
    tab.open(demo.url)
    tab.until("document.querySelector('pre')?.innerText.includes('H100 80GB HBM3')")
    assert "SIMULATED HOST" in tab.value("document.body.innerText")
    assert "Workloads" not in tab.value("document.body.innerText")  # filled by scripts
    assert tab.console_errors == []
