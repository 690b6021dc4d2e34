from __future__ import annotations

import base64
import threading
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor, as_completed

import bcrypt
import pytest

from otel_gpu.errors import Unavailable
from otel_gpu.web.authentication import BasicAuth, parse_basic

COST = 4  # the least bcrypt allows, as tests have no secrets


def hashed(password: str, cost: int = COST) -> bytes:
    return bcrypt.hashpw(password.encode(), bcrypt.gensalt(cost))


def basic(user: str, password: str) -> str:
    return "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()


@pytest.fixture(scope="module")
def users() -> Mapping[str, bytes]:
    return {"alice": hashed("right"), "bob": hashed("colon:and ünïcode", COST + 1)}


class Counted:
    """Which hashes were computed against, in order."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.hashes: list[bytes] = []
        self._check = bcrypt.checkpw
        monkeypatch.setattr(bcrypt, "checkpw", self)

    def __call__(self, password: bytes, hashed: bytes) -> bool:
        self.hashes.append(hashed)
        return self._check(password, hashed)


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> Counted:
    return Counted(monkeypatch)


def test_a_user_with_the_right_password_comes_in(users: Mapping[str, bytes]) -> None:
    auth = BasicAuth(users)
    assert auth.admits(basic("alice", "right"))
    assert auth.admits(basic("bob", "colon:and ünïcode"))


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
def test_nobody_else_does(users: Mapping[str, bytes], authorization: str | None) -> None:
    assert not BasicAuth(users).admits(authorization)


def test_the_scheme_may_be_in_any_case() -> None:
    assert parse_basic("bAsIc " + basic("a", "b")[6:]) == ("a", b"b")


def test_a_right_password_is_computed_once_and_a_wrong_one_each_time(
    users: Mapping[str, bytes], counted: Counted
) -> None:
    auth = BasicAuth(users)
    assert [auth.admits(basic("alice", word)) for word in ("right", "right", "wrong", "wrong", "right")] == [
        True,
        True,
        False,
        False,
        True,
    ]
    assert counted.hashes == [users["alice"]] * 3


def test_whom_nobody_knows_costs_as_much_as_the_costliest_user(users: Mapping[str, bytes], counted: Counted) -> None:
    auth = BasicAuth(users)
    assert not auth.admits(basic("mallory", "colon:and ünïcode"))  # right for the hash that stands in
    assert counted.hashes == [users["bob"]]
    assert not auth.admits(basic("mallory", "colon:and ünïcode"))
    assert counted.hashes == [users["bob"]] * 2


def test_a_password_that_was_right_for_one_is_not_for_another(users: Mapping[str, bytes]) -> None:
    auth = BasicAuth(users)
    assert auth.admits(basic("alice", "right"))
    assert not auth.admits(basic("bob", "right"))


def test_what_is_remembered_is_one_digest_per_user_and_no_password(users: Mapping[str, bytes]) -> None:
    long = "p" * 80  # bcrypt tells apart no two that begin with the same 72 bytes
    auth = BasicAuth({**users, "carol": hashed("p" * 72)})
    for ending in ("1", "2", "3"):
        assert auth.admits(basic("carol", long + ending))
    assert auth.admits(basic("alice", "right"))
    assert {user: len(digest) for user, digest in auth._right.items()} == {"carol": 32, "alice": 32}
    assert b"right" not in b"".join(auth._right.values())


def test_digests_of_two_processes_have_nothing_in_common(users: Mapping[str, bytes]) -> None:
    first, second = BasicAuth(users), BasicAuth(users)
    assert first.admits(basic("alice", "right"))
    assert second.admits(basic("alice", "right"))
    assert first._right != second._right


def test_guessing_takes_no_more_than_so_many_places_and_keeps_out_nobody_who_is_remembered(
    users: Mapping[str, bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    auth = BasicAuth(users)
    assert auth.admits(basic("alice", "right"))
    reached, go_on = threading.Semaphore(0), threading.Event()

    def slow(_password: bytes, _hashed: bytes) -> bool:
        reached.release()
        assert go_on.wait(30)
        return False

    monkeypatch.setattr(bcrypt, "checkpw", slow)
    with ThreadPoolExecutor(9) as pool:
        guesses = [pool.submit(auth.admits, basic("alice", "wrong")) for _ in range(9)]
        assert reached.acquire(timeout=30)
        refused = next(as_completed(guesses, timeout=30))  # eight wait, and the ninth is told to come again
        assert isinstance(refused.exception(), Unavailable)
        assert auth.admits(basic("alice", "right"))
        go_on.set()
    assert sorted(str(guess.exception()) for guess in guesses).count("None") == 8
