from __future__ import annotations

import threading
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor, as_completed

import bcrypt
import pytest

from otel_gpu.errors import Unavailable
from otel_gpu.web.access_policy import BasicAuth, parse_basic
from tests.unit.web.harness import basic, bcrypt_hash


@pytest.fixture(scope="module")
def users() -> Mapping[str, bytes]:
    return {"alice": bcrypt_hash("right").encode(), "bob": bcrypt_hash("colon:and ünïcode", 5).encode()}


class CheckRecorder:
    """Records the hashes that passwords are checked against, in order."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.hashes: list[bytes] = []
        self._check = bcrypt.checkpw
        monkeypatch.setattr(bcrypt, "checkpw", self)

    def __call__(self, password: bytes, hashed: bytes) -> bool:
        self.hashes.append(hashed)
        return self._check(password, hashed)


@pytest.fixture
def checks(monkeypatch: pytest.MonkeyPatch) -> CheckRecorder:
    return CheckRecorder(monkeypatch)


def test_the_correct_password_is_accepted(users: Mapping[str, bytes]) -> None:
    auth = BasicAuth(users)
    assert auth.accepts(basic("alice", "right"))
    assert auth.accepts(basic("bob", "colon:and ünïcode"))


@pytest.mark.parametrize(
    "authorization",
    [
        None,
        "",
        "Basic",
        "Basic !!!",
        "Basic é",
        "Basic YWxpY2U=",
        "Basic /zpyaWdodA==",
        "Bearer YWxpY2U6cmlnaHQ=",
        basic("alice", "wrong"),
        basic("alice", ""),
        basic("Alice", "right"),
        basic("", "right"),
        basic("bob", "right"),
        basic("alice", "right") + ", " + basic("alice", "right"),
        basic("alice", "x" * 5000),
        basic("alice", "right\0"),
    ],
)
def test_any_other_header_is_rejected(users: Mapping[str, bytes], authorization: str | None) -> None:
    assert not BasicAuth(users).accepts(authorization)


def test_the_scheme_is_case_insensitive() -> None:
    assert parse_basic("bAsIc " + basic("a", "b")[6:]) == ("a", b"b")


def test_a_correct_password_is_hashed_once_and_a_wrong_one_each_time(
    users: Mapping[str, bytes], checks: CheckRecorder
) -> None:
    auth = BasicAuth(users)
    assert [auth.accepts(basic("alice", word)) for word in ("right", "right", "wrong", "wrong", "right")] == [
        True,
        True,
        False,
        False,
        True,
    ]
    assert checks.hashes == [users["alice"]] * 3


def test_an_unknown_user_costs_as_much_as_the_costliest_one(users: Mapping[str, bytes], checks: CheckRecorder) -> None:
    auth = BasicAuth(users)
    assert not auth.accepts(basic("mallory", "colon:and ünïcode"))  # correct for the decoy hash
    assert checks.hashes == [users["bob"]]
    assert not auth.accepts(basic("mallory", "colon:and ünïcode"))
    assert checks.hashes == [users["bob"]] * 2


def test_a_remembered_password_is_valid_for_its_user_only(users: Mapping[str, bytes]) -> None:
    auth = BasicAuth(users)
    assert auth.accepts(basic("alice", "right"))
    assert not auth.accepts(basic("bob", "right"))


def test_one_digest_per_user_is_remembered_and_no_password(users: Mapping[str, bytes]) -> None:
    long = "p" * 80  # bcrypt ignores what follows the first 72 bytes
    auth = BasicAuth({**users, "carol": bcrypt_hash("p" * 72).encode()})
    for ending in ("1", "2", "3"):
        assert auth.accepts(basic("carol", long + ending))
    assert auth.accepts(basic("alice", "right"))
    assert {user: len(digest) for user, digest in auth._accepted_digests.items()} == {"carol": 32, "alice": 32}
    assert b"right" not in b"".join(auth._accepted_digests.values())


def test_digests_differ_between_processes(users: Mapping[str, bytes]) -> None:
    first, second = BasicAuth(users), BasicAuth(users)
    assert first.accepts(basic("alice", "right"))
    assert second.accepts(basic("alice", "right"))
    assert first._accepted_digests != second._accepted_digests


def test_pending_checks_are_limited_and_a_remembered_password_is_accepted_meanwhile(
    users: Mapping[str, bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    auth = BasicAuth(users)
    assert auth.accepts(basic("alice", "right"))
    entered, release = threading.Semaphore(0), threading.Event()

    def slow(_password: bytes, _hashed: bytes) -> bool:
        entered.release()
        assert release.wait(30)
        return False

    monkeypatch.setattr(bcrypt, "checkpw", slow)
    with ThreadPoolExecutor(9) as pool:
        guesses = [pool.submit(auth.accepts, basic("alice", "wrong")) for _ in range(9)]
        assert entered.acquire(timeout=30)
        refused = next(as_completed(guesses, timeout=30))  # eight are pending, the ninth is rejected
        assert isinstance(refused.exception(), Unavailable)
        assert auth.accepts(basic("alice", "right"))
        release.set()
    assert sorted(str(guess.exception()) for guess in guesses).count("None") == 8
