"""Names from a working engine, through the real SDK."""

from __future__ import annotations

import itertools
import threading
import time
from pathlib import Path

import pytest

from otel_gpu.clock import ManualClock
from otel_gpu.model import SourceState, WorkloadKind, WorkloadRef
from otel_gpu.sources.base import Claim
from otel_gpu.sources.names.docker import DockerSource, client
from otel_gpu.sources.unix_socket import Peer
from tests.docker_api import Bad, DockerApi, container_id, serving_docker
from tests.unit.sources.names.docker.conftest import MakeSource, first_read, unavailable
from tests.waiting import until

INSPECT = "/containers/{id}/json"


def ref(key: str, runtime: str | None = "docker", pod_uid: str | None = None) -> WorkloadRef:
    return WorkloadRef(WorkloadKind.CONTAINER, key, runtime=runtime, pod_uid=pod_uid)


def name(source: DockerSource, key: str) -> str | None:
    known = source.read({}).known.get(key)
    return None if known is None else known.names.container


def requests(api: DockerApi) -> int:
    return sum(api.requests.values())


def test_running_containers_are_known_after_the_first_list(api: DockerApi, make_source: MakeSource) -> None:
    key = api.run(1, "llm", Config={"Labels": {"team": "nlp"}}, HostConfig={"Privileged": True})
    source = make_source(api.base_url, labels=["team"], name="podman-1000", runtime="podman")
    assert source.name == "podman-1000"
    assert source.wait(10)
    read = source.read({})
    assert (read.state, read.reason, read.errors) == (SourceState.OK, None, 0)
    known = read.known[key]
    assert (known.names.container, known.names.image, known.names.runtime) == ("llm", "vllm:1", "podman")
    assert known.names.extra == (("container.label.team", "nlp"),)
    assert known.claims == (Claim("all", possible=True),)


def test_events_are_requested_before_the_list(api: DockerApi, make_source: MakeSource) -> None:
    api.bad["/containers/json"] = Bad(never=True)
    source = make_source(api.base_url)
    source.read({})
    until(lambda: api.count("/containers/json"))
    assert len(api.streams) == 1


def test_a_container_that_starts_is_inspected_once(api: DockerApi, make_source: MakeSource) -> None:
    source = make_source(api.base_url)
    assert source.wait(10)
    key = api.start(1, "llm")
    until(lambda: name(source, key) == "llm")
    assert api.count(INSPECT) == 1


def test_a_rename_needs_no_inspection(api: DockerApi, make_source: MakeSource) -> None:
    key = api.run(1, "before")
    source = make_source(api.base_url)
    assert source.wait(10)
    api.rename(key, "after")
    until(lambda: name(source, key) == "after")
    assert api.count(INSPECT) == 1


def test_a_restart_updates_the_start_time(api: DockerApi, make_source: MakeSource) -> None:
    key = api.run(1, "llm")
    source = make_source(api.base_url)
    assert source.wait(10)
    since_s = source.read({}).known[key].since_s
    api.die(key)
    until(lambda: not source.read({}).known[key].running)
    assert name(source, key) == "llm"
    api.start(1, "llm", State={"StartedAt": "2026-01-02T03:05:05Z"})
    until(lambda: source.read({}).known[key].running)
    restarted_s = source.read({}).known[key].since_s
    assert since_s is not None
    assert restarted_s is not None
    assert restarted_s > since_s


def test_a_removed_container_does_not_run(api: DockerApi, make_source: MakeSource) -> None:
    key = api.run(1, "llm")
    source = make_source(api.base_url)
    assert source.wait(10)
    api.die(key)
    api.destroy(key)
    until(lambda: not source.read({}).known[key].running)
    assert source.read({}).state is SourceState.OK


def test_a_container_that_is_gone_before_its_inspection_is_no_error(api: DockerApi, make_source: MakeSource) -> None:
    source = make_source(api.base_url)
    assert source.wait(10)
    for number in range(1, 200):
        key = api.start(number, f"job-{number}")
        api.die(key)
        api.destroy(key)
    last = api.start(200, "last")
    until(lambda: name(source, last) == "last")
    assert source.read({}).state is SourceState.OK


def test_five_hundred_unchanged_containers_cause_no_request(api: DockerApi, make_source: MakeSource) -> None:
    keys = [api.run(number, f"job-{number}") for number in range(500)]
    workloads = {ref(key): (number,) for number, key in enumerate(keys)}
    source = make_source(api.base_url)
    assert source.wait(60)
    first = source.read(workloads)
    assert len(first.known) == 500
    assert api.count(INSPECT) == 500
    asked = requests(api)
    for _ in range(20):
        again = source.read(workloads)
        assert again.known is first.known
        assert not again.pending
        time.sleep(0.01)
    assert requests(api) == asked


def test_requests_are_get_only_and_without_info(api: DockerApi, make_source: MakeSource) -> None:
    api.bad["/info"] = Bad(status=403)
    api.bad["/_ping"] = Bad(status=403)
    api.run(1, "llm")
    source = make_source(api.base_url)
    assert source.wait(10)
    key = api.start(2, "two")
    until(lambda: name(source, key) == "two")
    assert {method for method, _ in api.requests} == {"GET"}
    assert {path for _, path in api.requests} == {"/version", "/events", "/containers/json", INSPECT}


def test_after_five_minutes_containers_are_listed_again_without_inspections(
    api: DockerApi, make_source: MakeSource
) -> None:
    clock = ManualClock()
    kept, ended, renamed = (api.run(number, f"job-{number}") for number in range(3))
    source = make_source(api.base_url, clock=clock)
    assert source.wait(10)
    # Three changes without an event.
    del api.containers[ended]
    api.containers[renamed]["Name"] = "/other"
    new = api.run(9, "new")
    clock.advance(301)
    source.read({ref(container_id(77)): (1,)})  # anything that wakes it
    until(lambda: name(source, new) == "new")
    known = source.read({}).known
    assert known[kept].running
    assert not known[ended].running
    assert known[renamed].names.container == "other"
    assert api.count("/containers/json") == 2
    assert api.count("/events") == 2


# ---------------------------------------------------------------------------- pending


def test_a_container_is_pending_during_the_first_list(api: DockerApi, make_source: MakeSource) -> None:
    key = api.run(1, "llm")
    api.bad["/containers/json"] = Bad(never=True)
    source = make_source(api.base_url)
    in_pod, crio = container_id(2), container_id(3)
    asked = {
        ref(key): (1,),
        ref(in_pod, None, pod_uid="0c3e1f7a-8f4e-4a53-b9e2-5d6f1c2b3a49"): (2,),
        ref(crio, "cri-o"): (3,),
        WorkloadRef(WorkloadKind.SLURM_JOB, "7"): (4,),
        WorkloadRef(WorkloadKind.CONTAINER, "chosen-by-hand"): (5,),
    }
    assert source.read(asked).pending == {key}
    until(lambda: api.count("/containers/json"))
    assert source.read(asked).pending == {key}


def test_a_listed_container_of_a_pod_is_pending_until_it_is_inspected(api: DockerApi, make_source: MakeSource) -> None:
    key = api.run(1, "llm")
    api.bad[f"/containers/{key}/json"] = Bad(never=True)
    source = make_source(api.base_url)
    asked = {ref(key, None, pod_uid="0c3e1f7a-8f4e-4a53-b9e2-5d6f1c2b3a49"): (1,)}
    assert not source.read(asked).pending
    until(lambda: api.count(INSPECT))
    assert source.read(asked).pending == {key}


def test_a_container_whose_start_was_missed_is_looked_up(api: DockerApi, make_source: MakeSource) -> None:
    source = make_source(api.base_url)
    assert source.wait(10)
    key = api.run(1, "silent")
    assert source.read({ref(key): (1,)}).pending == {key}
    until(lambda: name(source, key) == "silent")
    assert not source.read({ref(key): (1,)}).pending


def test_an_unknown_id_is_looked_up_once(api: DockerApi, make_source: MakeSource) -> None:
    source = make_source(api.base_url)
    assert source.wait(10)
    unknown = {ref(container_id(5)): (1,), ref(container_id(6), "containerd"): (2,)}
    assert source.read(unknown).pending == {container_id(5)}
    until(lambda: not source.read(unknown).pending)
    for _ in range(10):
        source.read(unknown)
    assert api.count(INSPECT) == 1
    assert source.read(unknown).state is SourceState.OK


def test_a_sandbox_is_not_pending(api: DockerApi, make_source: MakeSource) -> None:
    key = api.run(1, "k8s_POD", Config={"Labels": {"io.kubernetes.docker.type": "podsandbox"}})
    source = make_source(api.base_url)
    assert source.wait(10)
    read = source.read({ref(key): (1,)})
    assert not read.pending
    assert not read.known
    assert api.count(INSPECT) == 1


# ---------------------------------------------------------------------------- the end


def test_close_ends_the_threads_while_a_stream_is_open(api: DockerApi, make_source: MakeSource) -> None:
    others = set(threading.enumerate())  # which tests before this one may have left to the end of the process

    def own() -> list[str]:
        return [thread.name for thread in set(threading.enumerate()) - others if thread.name.startswith("otel-gpu-")]

    source = make_source(api.base_url)
    assert source.wait(10)
    assert sorted(own()) == ["otel-gpu-docker", "otel-gpu-events"]
    source.close()
    assert own() == []
    assert source.read({}).state is SourceState.OK  # the latest answer persists


# ---------------------------------------------------------------------------- whose engine it is


def test_the_user_whose_process_listens_is_the_user_of_the_engine(
    api: DockerApi, make_source: MakeSource, monkeypatch: pytest.MonkeyPatch
) -> None:
    for uid, expected in ((0, None), (1000, 1000)):
        monkeypatch.setattr(client, "peer", lambda _, found=uid: Peer(1, found))
        assert first_read(make_source(api.base_url)).speaker.uid == expected
        assert first_read(make_source(api.base_url, uid=1001)).speaker.uid == 1001, "whose directory it is in"


def test_over_tcp_an_engine_is_taken_for_roots(make_source: MakeSource) -> None:
    with serving_docker(DockerApi(), ("127.0.0.1", 0)) as api:
        assert first_read(make_source(api.base_url)).speaker.uid is None


def test_the_containers_of_another_users_engine_are_forgotten_when_roots_listens(
    api: DockerApi, make_source: MakeSource, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise what the user said before would count as what root says."""
    forged = api.run(1, "forged")
    monkeypatch.setattr(client, "peer", lambda _: Peer(1, 1000))
    source = make_source(api.base_url)
    assert forged in first_read(source).known
    api.containers.clear()
    monkeypatch.setattr(client, "peer", lambda _: Peer(1, 0))
    api.drop_events()
    until(lambda: source.read({}).speaker.uid is None)
    assert not source.read({}).known


def test_a_listener_of_another_user_in_between_is_refused(
    api: DockerApi, make_source: MakeSource, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A user could lead the first connection to root's socket, and the next one to a socket of its own."""
    uids = itertools.cycle([0, 1000])
    monkeypatch.setattr(client, "peer", lambda _: Peer(1, next(uids)))
    assert "another user's process listens now" in unavailable(make_source(api.base_url))


def test_an_engine_of_a_user_looks_up_containers_of_that_user_only(api: DockerApi, make_source: MakeSource) -> None:
    source = make_source(api.base_url, uid=1000)
    first_read(source)
    refs = [
        WorkloadRef(WorkloadKind.CONTAINER, container_id(number), runtime="docker", user_uid=uid)
        for number, uid in enumerate((None, 1000, 1001))
    ]
    assert source.read(dict.fromkeys(refs, (1,))).pending == {container_id(1)}


def test_the_cgroup_of_the_process_that_the_engine_names_is_the_place_of_the_container(
    api: DockerApi, make_source: MakeSource, tmp_path: Path
) -> None:
    ids = [api.run(number, f"c{number}", State={"Pid": pid}) for number, pid in enumerate((70, 71, 72, 0))]
    ids += [api.run(9, "odd", State={"Pid": "70"})]
    for pid, container in ((70, ids[0]), (71, container_id(99))):
        (tmp_path / str(pid)).mkdir()
        path = f"0::/user.slice/user-1000.slice/user@1000.service/docker-{container}.scope"
        (tmp_path / str(pid) / "cgroup").write_text(path, encoding="ascii")
    known = first_read(make_source(api.base_url, proc_root=tmp_path)).known
    place = WorkloadRef(WorkloadKind.CONTAINER, ids[0], runtime="docker", user_uid=1000)
    assert [known[each].place for each in ids] == [place, None, None, None, None]
