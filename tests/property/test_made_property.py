"""Laws of frozen dataclasses that are made quickly: they are what they would have been."""

from __future__ import annotations

import pickle
from dataclasses import FrozenInstanceError, dataclass, fields, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from otel_gpu.model.made import maker, quickly_made
from tests.property.histories import thorough


@dataclass(frozen=True, slots=True)
class Plain:
    """As dataclasses make it."""

    first: int
    second: str | None = None
    third: tuple[int, ...] = ()

    @property
    def all_of_it(self) -> tuple[int, str | None, tuple[int, ...]]:
        """Something that reads its fields."""
        return self.first, self.second, self.third


@quickly_made
@dataclass(frozen=True, slots=True)
class Quick:
    """The same, made quickly."""

    first: int
    second: str | None = None
    third: tuple[int, ...] = ()

    @property
    def all_of_it(self) -> tuple[int, str | None, tuple[int, ...]]:
        """Something that reads its fields."""
        return self.first, self.second, self.third


make_plain = maker(Plain)
values = st.tuples(st.integers(), st.none() | st.text(), st.lists(st.integers()).map(tuple))


@thorough
@given(values, values)
def test_what_is_made_quickly_is_compared_hashed_shown_changed_and_copied_as_any_other(
    one: tuple[int, str | None, tuple[int, ...]], another: tuple[int, str | None, tuple[int, ...]]
) -> None:
    quick, plain = Quick(*one), Plain(*one)
    assert type(quick) is Quick
    assert quick.all_of_it == plain.all_of_it == one
    assert (quick == Quick(*another)) is (plain == Plain(*another))
    assert hash(quick) == hash(plain)
    assert repr(quick) == repr(plain).replace("Plain", "Quick")
    assert Quick(first=one[0]) == Quick(one[0], None, ())
    assert replace(quick, second=another[1]).all_of_it == (one[0], another[1], one[2])
    assert pickle.loads(pickle.dumps(quick)) == quick
    assert [field.name for field in fields(Quick)] == [field.name for field in fields(Plain)]


def test_what_is_made_quickly_is_frozen_and_has_no_other_attributes() -> None:
    quick = Quick(1)
    with pytest.raises(FrozenInstanceError):
        quick.first = 2  # type: ignore[misc]
    assert not hasattr(quick, "__dict__")


@pytest.mark.parametrize("given_values", [(), (1, None, (), 4)], ids=["too few", "too many"])
def test_a_wrong_number_of_values_is_refused_and_leaves_nothing_unfrozen(given_values: tuple[object, ...]) -> None:
    quick = Quick.__new__(Quick)
    with pytest.raises(TypeError):
        quick.__init__(*given_values)  # type: ignore[misc]
    assert type(quick) is Quick


@thorough
@given(values)
def test_what_a_maker_makes_is_what_the_class_makes(given_values: tuple[int, str | None, tuple[int, ...]]) -> None:
    made = make_plain(*given_values)
    assert type(made) is Plain
    assert made == Plain(*given_values)
    assert make_plain(first=given_values[0]) == Plain(given_values[0])
    with pytest.raises(FrozenInstanceError):
        made.first = 2  # type: ignore[misc]
    with pytest.raises(TypeError):
        make_plain()  # type: ignore[call-arg]
