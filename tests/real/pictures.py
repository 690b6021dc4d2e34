"""``make pictures``: screenshots of the page for the README, light and dark, of the demo after an hour."""

from __future__ import annotations

import sys
from pathlib import Path

from tests.picture_sources import MADE_OF, digest
from tests.real.chromium import Tab, chromium
from tests.real.stepped_agent import stepped_agent

MAX_BYTES = 300_000
PRICES = {"price-gpu-hour": "A100=1.8,H100=3.2,L4=0.6", "price-kwh": "0.3", "currency": "EUR"}


def main(directory: Path) -> None:
    """Write page.png, page-dark.png and the digest of their sources."""
    directory.mkdir(parents=True, exist_ok=True)
    with stepped_agent(flags=PRICES) as agent, chromium() as browser:
        sys.stderr.write("simulating an hour of the demo …\n")
        for _ in range(240):
            agent.advance(15)
        agent.advance(5)
        tab = Tab(browser)
        for name, dark in (("page.png", False), ("page-dark.png", True)):
            tab.emulate(width=1280, height=800, dark=dark)
            tab.open(agent.url)
            tab.until("document.getElementById('main')?.dataset.cycle")
            size = len(tab.screenshot(directory / name, scale=0.75))
            sys.stderr.write(f"{directory / name}: {size / 1000:.0f} kB\n")
            if size > MAX_BYTES:
                sys.exit(f"{name} is larger than {MAX_BYTES} bytes")
    (directory / MADE_OF).write_text(digest() + "\n", encoding="ascii")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
