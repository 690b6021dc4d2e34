"""Who was given which GPU, whatever it was called by whoever gave it."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from otel_gpu.granting import Given, Granted, grants_of
from otel_gpu.model import GpuHealth, GpuIdentity, GpuReading, MigReading, WorkloadKind, WorkloadRef
from otel_gpu.sources.base import Claim

A, B = (WorkloadRef(WorkloadKind.CONTAINER, id_ * 64) for id_ in "ab")
FIRST, SECOND, DIVIDED = (f"GPU-{n}1111111-aaaa-bbbb-cccc-000000000000" for n in range(3))
INSTANCES = [f"MIG-{n}2222222-aaaa-bbbb-cccc-000000000000" for n in range(2)]


def instance(uuid: str, index: int, gpu_instance: int, sm_count: int | None) -> MigReading:
    return MigReading(uuid, gpu_instance, 0, "1g.10gb", sm_count, None, None, index)


GPUS = (
    GpuReading(GpuIdentity(0, FIRST, "GPU", minor=3), 0),
    GpuReading(GpuIdentity(1, SECOND, "GPU", minor=2), 0),
    GpuReading(
        GpuIdentity(2, DIVIDED, "GPU", minor=1),
        0,
        # The slot between the two is empty.
        mig=(instance(INSTANCES[0], 0, 7, 14), instance(INSTANCES[1], 2, 9, 42)),
        sm_count=98,
    ),
)


def places(device: str) -> set[tuple[str, str]]:
    granted = grants_of([Given(A, Claim(device), None)], GPUS)
    return {(grant.gpu_uuid, grant.mig_uuid) for grant in granted.grants}


@pytest.mark.parametrize(
    ("device", "expected"),
    [
        ("0", {(FIRST, "")}),
        ("1", {(SECOND, "")}),
        ("nvidia3", {(FIRST, "")}),
        ("nvidia2", {(SECOND, "")}),
        (FIRST, {(FIRST, "")}),
        (FIRST[:12], {(FIRST, "")}),
        ("2", {(DIVIDED, INSTANCES[0]), (DIVIDED, INSTANCES[1])}),
        (DIVIDED, {(DIVIDED, INSTANCES[0]), (DIVIDED, INSTANCES[1])}),
        ("2:0", {(DIVIDED, INSTANCES[0])}),
        ("2:2", {(DIVIDED, INSTANCES[1])}),
        (INSTANCES[1], {(DIVIDED, INSTANCES[1])}),
        ("nvidia1/gi9", {(DIVIDED, INSTANCES[1])}),
        (f"MIG-{DIVIDED}/7/0", {(DIVIDED, INSTANCES[0])}),
        ("all", {(FIRST, ""), (SECOND, ""), (DIVIDED, INSTANCES[0]), (DIVIDED, INSTANCES[1])}),
    ],
)
def test_a_gpu_is_found_by_every_name_it_has(device: str, expected: set[tuple[str, str]]) -> None:
    assert places(device) == expected


@pytest.mark.parametrize(
    "device",
    ["", "7", "0:0", "2:1", "nvidia9", "nvidia1/gi8", f"MIG-{DIVIDED}/7/1", "GPU-", "GPU-0111", "GPU-99999999", "none"],
)
def test_what_is_not_on_this_host_is_given_to_nobody_and_told(device: str) -> None:
    given_ = Given(A, Claim(device), None)
    granted = grants_of([given_], GPUS)
    assert granted.grants == ()
    assert granted.unknown == (given_,)


@pytest.mark.parametrize("device", ["nvidia9", "nvidia1/gi8", f"MIG-{DIVIDED}/7/1", "GPU-99999999"])
def test_while_a_gpu_does_not_answer_nobody_knows_that_one_is_not_on_this_host(device: str) -> None:
    """Of one that is known from an earlier run its device node and its instances are not known yet."""
    silent = (*GPUS[:-1], replace(GPUS[-1], health=GpuHealth.FAILED, mig=None))
    assert grants_of([Given(A, Claim(device), None)], silent) == Granted((), ())


def test_the_beginning_of_two_uuids_is_neither() -> None:
    twins = tuple(
        replace(gpu, identity=replace(gpu.identity, uuid=f"GPU-0000000000-{gpu.identity.index}")) for gpu in GPUS
    )
    assert grants_of([Given(A, Claim("GPU-0000000000"), None)], twins).grants == ()


def test_a_gpu_that_has_no_instance_yet_is_one_of_this_host_with_nothing_to_give() -> None:
    undivided = (replace(GPUS[2], mig=()),)
    for device in ("2", DIVIDED, "nvidia1"):
        assert grants_of([Given(A, Claim(device), None)], undivided) == ((), ())


def test_nothing_is_amiss_while_no_gpu_is_known() -> None:
    assert grants_of([Given(A, Claim("0"), None), Given(A, Claim("all"), None)], ()) == ((), ())


# ---------------------------------------------------------------------------- shares


def shares(*given_: Given) -> dict[tuple[WorkloadRef, str], float | None]:
    return {(grant.workload, grant.mig_uuid or grant.gpu_uuid): grant.share for grant in grants_of(given_, GPUS).grants}


def test_who_has_a_gpu_to_itself_has_one_and_an_instance_is_its_part_of_the_sms() -> None:
    found = shares(Given(A, Claim("0"), 5.0), Given(A, Claim("2:0"), None), Given(B, Claim("2:2"), None))
    assert found == {(A, FIRST): 1.0, (A, INSTANCES[0]): 14 / 98, (B, INSTANCES[1]): 42 / 98}


def test_a_replica_is_its_part_however_many_are_taken() -> None:
    assert shares(Given(A, Claim("0", replicas=4), None), Given(B, Claim("0", replicas=4), None)) == {
        (A, FIRST): 0.25,
        (B, FIRST): 0.25,
    }


def test_two_replicas_are_two_parts_and_never_more_than_there_is() -> None:
    one = Given(A, Claim("0", replicas=4), None)
    assert shares(one, one) == {(A, FIRST): 0.5}
    assert shares(*[one] * 9) == {(A, FIRST): 1.0}


def test_a_replica_of_an_unknown_number_is_no_known_part() -> None:
    assert shares(Given(A, Claim("0", replicas=0), None)) == {(A, FIRST): None}


def test_what_two_were_given_whole_they_have_in_halves() -> None:
    assert shares(Given(A, Claim("0"), None), Given(B, Claim(FIRST), None)) == {(A, FIRST): 0.5, (B, FIRST): 0.5}


def test_an_instance_of_unknown_size_is_no_known_part() -> None:
    unknown = tuple(replace(gpu, sm_count=None) for gpu in GPUS)
    assert [grant.share for grant in grants_of([Given(A, Claim("2:0"), None)], unknown).grants] == [None]


def test_who_could_use_a_gpu_has_no_part_of_it_and_takes_none_from_others() -> None:
    could = Given(A, Claim("all", possible=True), None)
    found = grants_of([could, Given(B, Claim("0"), 5.0)], GPUS).grants
    assert [(grant.workload, grant.share, grant.possible) for grant in found if grant.gpu_uuid == FIRST] == [
        (A, None, True),
        (B, 1.0, False),
    ]


def test_who_was_given_what_it_could_use_anyway_was_given_it() -> None:
    for order in ((0, 1), (1, 0)):
        both = [Given(A, Claim("all", possible=True), None), Given(A, Claim("1"), 5.0)]
        found = grants_of([both[index] for index in order], GPUS).grants
        assert [(g.share, g.possible, g.since_s) for g in found if g.gpu_uuid == SECOND] == [(1.0, False, 5.0)]


@given(
    st.lists(
        st.builds(
            Given,
            st.sampled_from([A, B]),
            st.builds(
                Claim,
                st.one_of(st.text(max_size=12), st.sampled_from(["all", "0", "2:0", FIRST, INSTANCES[0]])),
                st.sampled_from([None, 0, 2, 4]),
                st.booleans(),
            ),
            st.none(),
        ),
        max_size=8,
    )
)
def test_nobody_has_more_than_there_is_and_each_place_once(given_: list[Given]) -> None:
    granted = grants_of(given_, GPUS)
    keys = [(grant.workload, grant.gpu_uuid, grant.mig_uuid) for grant in granted.grants]
    assert len(keys) == len(set(keys))
    assert all(grant.share is None or 0 < grant.share <= 1 for grant in granted.grants)
    whole = [grant.share for grant in granted.grants if grant.gpu_uuid == FIRST and grant.share is not None]
    replicas = any(each.claim.replicas for each in given_)
    assert replicas or sum(whole) <= 1
