"""The page of a sidecar, and the page with TLS and a password, in a real browser."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import bcrypt
import pytest

from otel_gpu.config.values import Address, address
from otel_gpu.export.document import to_json
from otel_gpu.model import Pod
from tests.agent_process import AgentProcess, simulated_agent
from tests.real.chromium import Browser, Tab
from tests.real.page_view import CARDS, LOW_CONTRAST, NAMES, NARROW, TABLE, WIDE, assert_clean, is_current, open_page
from tests.real.stepped_agent import stepped_agent
from tests.unit.web.pki import Pki
from tests.web import ask

pytestmark = pytest.mark.real

USER: Final = "alice"
PASSWORD: Final = "correct horse"


# ---------------------------------------------------------------------------- a sidecar


TRAINER_POD: Final = Pod(name="finetune-13b-worker-0", namespace="research")


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("width", [WIDE, NARROW])
def test_the_page_of_a_sidecar_shows_its_pod_only(browser: Browser, tmp_path: Path, width: int, dark: bool) -> None:
    with stepped_agent(flags={"scope": "pod"}, pod=TRAINER_POD) as agent:
        attribution = agent.advance(5)
        tab = open_page(browser, agent, width=width, dark=dark)
        assert tab.value(NAMES) == ["trainer"]
        assert "pod research/finetune-13b-worker-0" in tab.value("document.getElementById('where').innerText")
        [workload] = json.loads(to_json(attribution))["workloads"]
        [row] = tab.value(TABLE)
        assert int(row["memory"]) == sum(part["memory"]["measured"] for part in workload["gpus"]) > 0
        # Figures of a whole GPU include other pods, so the page has no bars, no totals and no other names.
        assert tab.value("document.getElementById('devices').hidden && document.getElementById('overview').hidden")
        assert tab.value("[...document.querySelectorAll('.gpu')].every(card => !card.checkVisibility())")
        shown = tab.value("document.body.innerText")
        assert not re.search(r"vllm|notebook|ollama|184\d\d\d", shown)
        tab.value("document.querySelector('.open').click()")
        assert len(tab.value("[...document.querySelectorAll('.details tbody tr')].map(row => row.innerText)")) == 3
        assert tab.value("document.documentElement.scrollWidth") <= width
        assert tab.value(LOW_CONTRAST) == []
        agent.advance(5)
        tab.until(is_current(agent))
        assert tab.value(NAMES) == ["trainer"]
        tab.screenshot(tmp_path / "pod.png")
        assert_clean(tab, agent.url)


def test_responses_of_a_sidecar_have_no_other_names(browser: Browser) -> None:
    """Neither the document nor the table without scripts has names of other workloads."""
    with stepped_agent(flags={"scope": "pod"}, pod=TRAINER_POD) as agent:
        tab = Tab(browser, scripts=False)
        tab.open(agent.url)
        tab.until("document.querySelector('pre')?.innerText.includes('trainer')")
        answers = [ask(agent.address, path).body for path in ("/", "/api/attribution")]
        for text in (*answers, tab.value("document.body.innerText")):
            assert "trainer" in text
            assert not re.search(r"vllm|notebook|ollama", text)


# ---------------------------------------------------------------------------- TLS and a password


@pytest.fixture
def pki(tmp_path: Path) -> Pki:
    return Pki(tmp_path)


@pytest.fixture
def agent(pki: Pki, tmp_path: Path) -> Iterator[AgentProcess]:
    """An agent with a certificate that requires a password."""
    hashed = bcrypt.hashpw(PASSWORD.encode(), bcrypt.gensalt(4)).decode()
    config = pki.config(f"basic_auth_users:\n  {USER}: {hashed}\n")
    with simulated_agent("--exporters", "none", "--web-config", str(config), directory=tmp_path) as started:
        started.until(lambda: "/healthz" in started.stderr)
        yield started


def address_of(agent: AgentProcess) -> Address:
    """The address in the URL that it logs, which is https."""
    found = re.search(r"https://(\S+)/healthz", agent.stderr)
    assert found is not None
    return address(found[1])


def test_the_page_works_over_tls_with_a_password(
    browser: Browser, agent: AgentProcess, pki: Pki, tmp_path: Path
) -> None:
    at = address_of(agent)
    tab = Tab(browser)
    tab.emulate(width=WIDE, dark=False)
    # The browser trusts the system's authorities only; the request at the end of this test checks the certificate.
    tab.command("Security.setIgnoreCertificateErrors", ignore=True)
    tab.open(f"https://{USER}:{PASSWORD.replace(' ', '%20')}@{at}/")
    cycle = tab.until("document.getElementById('main')?.dataset.cycle")
    assert tab.value("isSecureContext && location.protocol") == "https:"
    tab.until(f"document.getElementById('main').dataset.cycle !== '{cycle}'")  # server-sent events, with the password
    assert len(tab.value(CARDS)) == 4
    assert len(tab.value(TABLE)) > 10
    tab.screenshot(tmp_path / "guarded.png")
    assert tab.console_errors == []
    assert PASSWORD not in tab.value("document.documentElement.outerHTML")
    basic = {"Authorization": "Basic " + base64.b64encode(f"{USER}:{PASSWORD}".encode()).decode()}
    assert ask(at, "/", headers=basic, tls=pki.client()).status == 200


def test_without_the_password_nothing_is_shown(browser: Browser, agent: AgentProcess) -> None:
    at = address_of(agent)
    for credentials in ("", f"{USER}:wrong@"):
        tab = Tab(browser)
        tab.command("Security.setIgnoreCertificateErrors", ignore=True)
        tab.open(f"https://{credentials}{at}/")
        tab.until("location.protocol === 'chrome-error:' && document.readyState === 'complete'")
        assert any("status of 401" in complaint for complaint in tab.console_errors)
        assert "GPU" not in tab.value("document.body.innerText")


def test_a_browser_without_the_authority_rejects_the_certificate(browser: Browser, agent: AgentProcess) -> None:
    tab = Tab(browser)
    refused = tab.command("Page.navigate", url=f"https://{address_of(agent)}/")
    assert refused["errorText"] == "net::ERR_CERT_AUTHORITY_INVALID"
