"""Claims resolved to grants, for every form in which a runtime or scheduler names a device."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from otel_gpu.model import GpuHealth, GpuIdentity, GpuReading, MigReading, WorkloadKind, WorkloadRef
from otel_gpu.sources.base import Claim
from otel_gpu.sources.names.grants import GrantResult, WorkloadClaim, grants_of

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
        # No instance has index 1.
        mig=(instance(INSTANCES[0], 0, 7, 14), instance(INSTANCES[1], 2, 9, 42)),
        sm_count=98,
    ),
)


def devices(device: str) -> set[tuple[str, str]]:
    result = grants_of([WorkloadClaim(A, Claim(device), None)], GPUS)
    return {(grant.gpu_uuid, grant.mig_uuid) for grant in result.grants}


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
def test_a_gpu_is_found_by_every_form_of_its_name(device: str, expected: set[tuple[str, str]]) -> None:
    assert devices(device) == expected


@pytest.mark.parametrize(
    "device",
    ["", "7", "0:0", "2:1", "nvidia9", "nvidia1/gi8", f"MIG-{DIVIDED}/7/1", "GPU-", "GPU-0111", "GPU-99999999", "none"],
)
def test_a_device_that_is_not_on_this_host_is_not_granted_and_is_reported_as_unknown(device: str) -> None:
    claim = WorkloadClaim(A, Claim(device), None)
    result = grants_of([claim], GPUS)
    assert result.grants == ()
    assert result.unknown == (claim,)


@pytest.mark.parametrize("device", ["nvidia9", "nvidia1/gi8", f"MIG-{DIVIDED}/7/1", "GPU-99999999"])
def test_no_device_is_unknown_while_a_gpu_does_not_answer(device: str) -> None:
    """The device node and the instances of a GPU that is known from an earlier run only are not known yet."""
    silent = (*GPUS[:-1], replace(GPUS[-1], health=GpuHealth.FAILED, mig=None))
    assert grants_of([WorkloadClaim(A, Claim(device), None)], silent) == GrantResult((), ())


def test_the_beginning_of_two_uuids_matches_neither() -> None:
    twins = tuple(
        replace(gpu, identity=replace(gpu.identity, uuid=f"GPU-0000000000-{gpu.identity.index}")) for gpu in GPUS
    )
    assert grants_of([WorkloadClaim(A, Claim("GPU-0000000000"), None)], twins).grants == ()


def test_a_gpu_in_mig_mode_without_instances_is_known_and_grants_nothing() -> None:
    undivided = (replace(GPUS[2], mig=()),)
    for device in ("2", DIVIDED, "nvidia1"):
        assert grants_of([WorkloadClaim(A, Claim(device), None)], undivided) == ((), ())


def test_no_device_is_unknown_while_no_gpu_is_known() -> None:
    assert grants_of([WorkloadClaim(A, Claim("0"), None), WorkloadClaim(A, Claim("all"), None)], ()) == ((), ())


# ---------------------------------------------------------------------------- shares


def shares(*claims: WorkloadClaim) -> dict[tuple[WorkloadRef, str], float | None]:
    return {(grant.workload, grant.mig_uuid or grant.gpu_uuid): grant.share for grant in grants_of(claims, GPUS).grants}


def test_a_whole_gpu_is_a_share_of_one_and_an_instance_is_its_part_of_the_sms() -> None:
    found = shares(
        WorkloadClaim(A, Claim("0"), 5.0), WorkloadClaim(A, Claim("2:0"), None), WorkloadClaim(B, Claim("2:2"), None)
    )
    assert found == {(A, FIRST): 1.0, (A, INSTANCES[0]): 14 / 98, (B, INSTANCES[1]): 42 / 98}


def test_a_replica_has_its_share_however_many_replicas_are_taken() -> None:
    assert shares(WorkloadClaim(A, Claim("0", replicas=4), None), WorkloadClaim(B, Claim("0", replicas=4), None)) == {
        (A, FIRST): 0.25,
        (B, FIRST): 0.25,
    }


def test_replicas_add_up_to_at_most_the_whole_gpu() -> None:
    one = WorkloadClaim(A, Claim("0", replicas=4), None)
    assert shares(one, one) == {(A, FIRST): 0.5}
    assert shares(*[one] * 9) == {(A, FIRST): 1.0}


def test_a_replica_of_an_unknown_number_has_no_share() -> None:
    assert shares(WorkloadClaim(A, Claim("0", replicas=0), None)) == {(A, FIRST): None}


def test_two_workloads_granted_the_whole_gpu_have_halves() -> None:
    assert shares(WorkloadClaim(A, Claim("0"), None), WorkloadClaim(B, Claim(FIRST), None)) == {
        (A, FIRST): 0.5,
        (B, FIRST): 0.5,
    }


def test_an_instance_of_unknown_size_has_no_share() -> None:
    unknown = tuple(replace(gpu, sm_count=None) for gpu in GPUS)
    assert [grant.share for grant in grants_of([WorkloadClaim(A, Claim("2:0"), None)], unknown).grants] == [None]


def test_possible_access_has_no_share_and_takes_none_from_others() -> None:
    possible = WorkloadClaim(A, Claim("all", possible=True), None)
    found = grants_of([possible, WorkloadClaim(B, Claim("0"), 5.0)], GPUS).grants
    assert [(grant.workload, grant.share, grant.possible) for grant in found if grant.gpu_uuid == FIRST] == [
        (A, None, True),
        (B, 1.0, False),
    ]


def test_a_grant_is_stronger_than_possible_access() -> None:
    for order in ((0, 1), (1, 0)):
        both = [WorkloadClaim(A, Claim("all", possible=True), None), WorkloadClaim(A, Claim("1"), 5.0)]
        found = grants_of([both[index] for index in order], GPUS).grants
        assert [(g.share, g.possible, g.since_s) for g in found if g.gpu_uuid == SECOND] == [(1.0, False, 5.0)]


@given(
    st.lists(
        st.builds(
            WorkloadClaim,
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
def test_shares_never_exceed_the_gpu_and_each_device_is_granted_once(claims: list[WorkloadClaim]) -> None:
    result = grants_of(claims, GPUS)
    keys = [(grant.workload, grant.gpu_uuid, grant.mig_uuid) for grant in result.grants]
    assert len(keys) == len(set(keys))
    assert all(grant.share is None or 0 < grant.share <= 1 for grant in result.grants)
    whole = [grant.share for grant in result.grants if grant.gpu_uuid == FIRST and grant.share is not None]
    replicas = any(each.claim.replicas for each in claims)
    assert replicas or sum(whole) <= 1
