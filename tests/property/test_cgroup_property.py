"""Laws of the cgroup parser: any text gives a workload or none, and its ids are in the text."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from otel_gpu.model import HOST_WORKLOAD, WorkloadKind, WorkloadRef
from otel_gpu.sources.proc.cgroup import parse_cgroup
from tests.depth import DEPTH
from tests.unit.sources.proc.test_cgroup import PATHS

# Derandomised, so that a failed build is caused by the change. `make fuzz` tries new inputs.
many = settings(max_examples=120 * DEPTH, deadline=None, derandomize=True, database=None)
some = settings(max_examples=60 * DEPTH, deadline=None, derandomize=True, database=None)

SPECIFICITY = [
    WorkloadKind.HOST,
    WorkloadKind.SYSTEMD_UNIT,
    WorkloadKind.LXC,
    WorkloadKind.SLURM_JOB,
    WorkloadKind.CONTAINER,
]

real_paths = [path for path, _ in PATHS.values()]
segments = sorted({segment for path in real_paths for segment in path.split("/")})

hex64 = st.text("0123456789abcdef", min_size=64, max_size=64)
undecodable = st.binary(max_size=40).map(lambda raw: raw.decode("utf-8", "surrogateescape"))
any_text = st.text(st.characters(exclude_categories=()), max_size=40)
segment = st.one_of(st.sampled_from(segments), st.sampled_from(segments), hex64, any_text, undecodable)
path = st.one_of(
    st.sampled_from(real_paths),
    st.lists(segment, max_size=8).map(lambda parts: "/" + "/".join(parts)),
    st.tuples(st.sampled_from(real_paths), any_text).map("".join),
)
line = st.one_of(
    st.tuples(st.sampled_from(["0::", "1:name=systemd:", "12:cpu,cpuacct:", ":", "x:y:"]), path).map("".join),
    any_text,
    undecodable,
)
text = st.one_of(st.lists(line, max_size=6).map("\n".join), any_text, undecodable)


def rank(workload: WorkloadRef | None) -> int:
    return -1 if workload is None else SPECIFICITY.index(workload.kind)


@many
@given(text)
def test_any_text_gives_a_workload_whose_parts_are_in_the_text(text: str) -> None:
    workload = parse_cgroup(text)

    if workload is None or workload == HOST_WORKLOAD:
        return
    named = [workload.id, workload.runtime, workload.pod_uid, workload.slurm_step, workload.outer_container_id]
    assert all(name.isascii() and name.isprintable() and name for name in named if name is not None)
    assert workload.id in text
    assert workload.kind is not WorkloadKind.HOST
    assert workload.slurm_step is None or f"step_{workload.slurm_step}" in text
    assert workload.pod_uid is None or workload.pod_uid in text.replace("_", "-")
    assert workload.outer_container_id is None or workload.outer_container_id in text
    assert workload.outer_container_id != workload.id
    assert (
        workload.user_uid is None or f"user-{workload.user_uid}.slice" in text or f"user@{workload.user_uid}." in text
    )


@some
@given(st.lists(line, max_size=6).flatmap(lambda lines: st.tuples(st.just(lines), st.permutations(lines))))
def test_the_order_of_lines_does_not_matter(orders: tuple[list[str], list[str]]) -> None:
    one, other = orders

    assert parse_cgroup("\n".join(one)) == parse_cgroup("\n".join(other))


@some
@given(st.lists(line, max_size=5), st.lists(line, max_size=5))
def test_further_cgroup_lines_never_make_the_workload_less_specific(lines: list[str], more: list[str]) -> None:
    alone, together = parse_cgroup("\n".join(lines)), parse_cgroup("\n".join([*more, *lines]))

    assert rank(together) >= rank(alone)


@some
@given(st.sampled_from(sorted(PATHS)), st.lists(any_text, max_size=5))
def test_garbage_beside_a_real_line_changes_nothing(name: str, garbage: list[str]) -> None:
    real_path, expected = PATHS[name]

    # With the prefix "x" no line of the garbage has a hierarchy number, so none is usable.
    beside = [f"x{part}".replace("\n", "\nx") for part in garbage]
    assert parse_cgroup("\n".join([*beside, f"0::{real_path}", *beside])) == expected


@some
@given(
    outer=st.none() | hex64,
    pod_uid=st.none() | st.uuids().map(str),
    runtime=st.sampled_from([("docker", "docker"), ("cri-containerd", "containerd"), ("crio", "cri-o")]),
    container_id=hex64,
    below=st.sampled_from(["", "/container", "/system.slice/ollama.service", "/init.scope"]),
    hidden=st.integers(0, 5),
    user=st.none() | st.integers(1, (1 << 32) - 1),
)
def test_a_scope_is_read_back_with_all_that_is_around_it(
    *,
    outer: str | None,
    pod_uid: str | None,
    runtime: tuple[str, str],
    container_id: str,
    below: str,
    hidden: int,
    user: int | None,
) -> None:
    prefix, name = runtime
    written = "/.." * hidden
    written += f"/user.slice/user-{user}.slice/user@{user}.service" if user else ""
    written += f"/docker/{outer}/kubelet.slice" if outer else ""
    written += f"/kubelet-kubepods-pod{pod_uid.replace('-', '_')}.slice" if pod_uid else ""
    written += f"/{prefix}-{container_id}.scope{below}"

    assert parse_cgroup(f"0::{written}\n") == WorkloadRef(
        WorkloadKind.CONTAINER,
        container_id,
        runtime=name,
        pod_uid=pod_uid,
        outer_container_id=outer if outer != container_id else None,
        user_uid=user,
    )
