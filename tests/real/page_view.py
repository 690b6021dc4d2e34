"""The page in a browser: JavaScript expressions that read it, and helpers that open and check it."""

from __future__ import annotations

from typing import Final
from urllib.parse import urlsplit

from tests.real.chromium import Browser, Tab
from tests.real.stepped_agent import SteppedAgent

WIDE: Final = 1280
NARROW: Final = 360

UNKNOWN: Final = "\N{EN DASH}"

TABLE: Final = """[...document.querySelectorAll('#rows > tr:not(.details)')].map(row => {
  const cells = [...row.querySelectorAll('td')].map(cell => [cell.dataset.key, cell.firstChild]);
  const each = get => Object.fromEntries(cells.map(([key, node]) => [key, get(node)]));
  return {
    ...each(node => node.value === '' ? null : node.value),
    id: row.dataset.id,
    name: row.querySelector('.name').textContent,
    texts: each(node => node.textContent),
    how: each(node => node.title),
  };
})"""
"""Every row: the value of each cell, its text (``texts``) and its tooltip (``how``)."""

NAMES: Final = "[...document.querySelectorAll('#rows > tr:not(.details) .name')].map(node => node.textContent)"

CARDS: Final = """[...document.querySelectorAll('.gpu')].map(card => ({
  title: card.querySelector('h3').textContent,
  state: card.querySelector('.state').textContent,
  bars: card.querySelectorAll('.bar').length,
  figures: [...card.querySelectorAll('.figures data')].map(node => node.value),
  texts: [...card.querySelectorAll('.figures data')].map(node => node.textContent),
  beside: [...card.querySelectorAll('.figures dd span')].map(node => node.textContent),
  plots: [...card.querySelectorAll('.plot')].map(node => node.getAttribute('aria-label')),
  amount: card.querySelector('.amount').textContent,
  held: [...card.querySelectorAll('.holders data')].map(node => Number(node.value)),
  holders: [...card.querySelectorAll('.holders li')].map(
    line => ['.name', 'data', '.sure'].map(part => line.querySelector(part).textContent)),
}))"""

PROCESSES: Final = """[...document.querySelectorAll('.details')].flatMap(details =>
  [...details.querySelectorAll(':scope tbody tr')].map(row => {
    const cells = [...row.querySelectorAll('td')].map(cell => [cell.dataset.label, cell.firstChild]);
    const each = get => Object.fromEntries(cells.map(([label, node]) => [label, get(node)]));
    return {
      workload: details.previousElementSibling.dataset.id,
      texts: each(node => node.textContent),
      values: each(node => node.value),
    };
  }))"""
"""Every process of the expanded workloads: the texts and values of its cells."""

TOTALS: Final = """[...document.querySelectorAll('#totals > div')].map(node => {
  const figure = node.querySelector('data');
  return [node.querySelector('dt').textContent, node.querySelector('dd').textContent, figure.value, figure.title];
})"""
"""The totals: name, text, value, and how the value was obtained."""

WRAPPED_TEXT: Final = """[...document.querySelectorAll('#rows .name, #totals b')].filter(node => {
  const text = document.createRange();
  text.selectNodeContents(node);
  return new Set([...text.getClientRects()].map(line => line.top)).size > 1;
}).map(node => node.textContent)"""
"""Names and totals that wrap to more than one line."""

SPLIT_CELLS: Final = """[...document.querySelectorAll('#rows > tr:not(.details) > td')].filter(cell => {
  const {display, lineHeight} = getComputedStyle(cell);
  return display === 'flex' && cell.clientHeight > 1.7 * parseFloat(lineHeight);
}).map(cell => cell.dataset.key)"""
"""Cells of a narrow page whose label and figure are not on one line."""

MISALIGNED_PLOTS: Final = """[...document.querySelectorAll('.gpu')].filter(card =>
  new Set([...card.querySelectorAll('.plot')].map(plot => Math.round(plot.getBoundingClientRect().top))).size > 1
).map(card => card.innerText)"""
"""GPUs whose plots are not in one row."""

UNFILLED_LISTS: Final = """['totals', 'gpus'].filter(id => {
  const ends = new Map();
  for (const child of document.getElementById(id).children) {
    const {top, right} = child.getBoundingClientRect();
    ends.set(Math.round(top), Math.max(right, ends.get(Math.round(top)) ?? 0));
  }
  return new Set([...ends.values()].map(Math.round)).size > 1;
})"""
"""Lists with a row that does not extend to the right edge."""

SMALL_TARGETS: Final = """[...document.querySelectorAll(
  'button, summary, select, input, a:not(.skip)')].filter(node => {
  const {width, height} = node.getBoundingClientRect();
  return node.checkVisibility() && (width < 24 || height < 24);
}).map(node => node.textContent || node.id)"""
"""Targets below the minimum size (WCAG 2.2, 2.5.8)."""

LOW_CONTRAST: Final = """(() => {
  const canvas = document.createElement('canvas').getContext('2d', {willReadFrequently: true});
  const rgba = colour => {
    canvas.clearRect(0, 0, 1, 1);
    canvas.fillStyle = colour;
    canvas.fillRect(0, 0, 1, 1);
    return [...canvas.getImageData(0, 0, 1, 1).data];
  };
  const linear = value => (value /= 255) <= .03928 ? value / 12.92 : ((value + .055) / 1.055) ** 2.4;
  const luminance = ([r, g, b]) => .2126 * linear(r) + .7152 * linear(g) + .0722 * linear(b);
  const behind = node => {
    const colour = rgba(getComputedStyle(node).backgroundColor);
    return colour[3] === 255 ? colour : behind(node.parentElement);
  };
  const opacity = node => node === null ? 1 : Number(getComputedStyle(node).opacity) * opacity(node.parentElement);
  const veiled = (colour, back, share) => colour.map((part, at) => share * part + (1 - share) * back[at]);
  const found = [];
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walker.nextNode()) {
    const [text, node] = [walker.currentNode.data.trim(), walker.currentNode.parentElement];
    if (!text || !node.checkVisibility() || node.matches('noscript, .skip, .unseen, option')) continue;
    const back = behind(node);
    const colour = veiled(rgba(getComputedStyle(node).color), back, opacity(node));
    const both = [luminance(colour), luminance(back)].sort((a, b) => b - a);
    const ratio = (both[0] + .05) / (both[1] + .05);
    if (ratio < 4.5) found.push([node.className || node.tagName, text, ratio]);
  }
  return found;
})()"""
"""Text with a contrast below 4.5 (WCAG 2.2, 1.4.3)."""


def choose_theme(theme: str) -> str:
    """An expression that selects a theme in the menu."""
    return f"""(() => {{
      const menu = document.getElementById('theme');
      menu.value = '{theme}';
      menu.dispatchEvent(new Event('change'));
    }})()"""


def is_current(agent: SteppedAgent) -> str:
    """An expression for whether the page shows the newest cycle."""
    return f"document.getElementById('main')?.dataset.cycle === '{agent.now().wall_ns}'"


def open_page(browser: Browser, agent: SteppedAgent, *, width: int = WIDE, dark: bool = False) -> Tab:
    """A tab whose page shows the newest cycle."""
    tab = Tab(browser)
    tab.emulate(width=width, dark=dark)
    tab.open(agent.url)
    tab.until(is_current(agent))
    return tab


def assert_clean(tab: Tab, url: str) -> None:
    """No error in the console, no policy violation, and no request to another origin."""
    assert tab.console_errors == []
    origins = {urlsplit(request)[:2] for request in tab.requests}
    assert origins == {urlsplit(url)[:2]}
