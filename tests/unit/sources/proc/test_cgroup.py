"""Every known form of path with its workload, and similar paths that are not one."""

from __future__ import annotations

import time
from dataclasses import replace

import pytest

from otel_gpu.model import HOST_WORKLOAD, WorkloadKind, WorkloadRef
from otel_gpu.sources.proc.cgroup import parse_cgroup, tenant

CID = "3726184226f5d3147c25fdeab5b60097e378e8a720503a5e19ecfdf29f869860"
INNER = "e73c55f3e7f5b6a9cfc32a89bf13e44d348bcc4fa7b079f804d61fb1532ddbe5"
THIRD = "0f99ad5f45163ed14ab8eaf92ed34bb4a631d007f8755a7d79be614bcb0df0ef"
UID = "40934a46-d409-4f4a-bb8b-1ec0b0436320"
OTHER_UID = "019c1fe8-0d92-4aa0-b61c-4df58bdde71c"
SLICE_UID = UID.replace("-", "_")
STATIC_UID = "187bff14cccb94f179e943eacce55bb3"
TASK = "5a0d5ceddf6c44c1928d367a815d890f"

KUBEPODS = "/kubepods.slice/kubepods-burstable.slice"
POD_SLICE = f"kubepods-burstable-pod{SLICE_UID}.slice"
USER_SERVICE = "/user.slice/user-1000.slice/user@1000.service"

docker = WorkloadRef(WorkloadKind.CONTAINER, CID, runtime="docker")
containerd = replace(docker, runtime="containerd")
crio = replace(docker, runtime="cri-o")
podman = replace(docker, runtime="podman")
unknown_runtime = replace(docker, runtime=None)


def in_pod(container: WorkloadRef, uid: str = UID) -> WorkloadRef:
    return replace(container, pod_uid=uid)


def unit(name: str) -> WorkloadRef:
    return WorkloadRef(WorkloadKind.SYSTEMD_UNIT, name)


def job(job_id: str, step: str | None = None) -> WorkloadRef:
    return WorkloadRef(WorkloadKind.SLURM_JOB, job_id, slurm_step=step)


def lxc(name: str) -> WorkloadRef:
    return WorkloadRef(WorkloadKind.LXC, name)


def of_user(workload: WorkloadRef, uid: int = 1000) -> WorkloadRef:
    return replace(workload, user_uid=uid)


PATHS: dict[str, tuple[str, WorkloadRef | None]] = {
    # Docker
    "docker with the cgroupfs driver": (f"/docker/{CID}", docker),
    "docker with the systemd driver": (f"/system.slice/docker-{CID}.scope", docker),
    "docker with a slice of its own": (f"/gpu.slice/gpu-team.slice/docker-{CID}.scope", docker),
    "docker with a parent of its own": (f"/actions_job/{CID}", unknown_runtime),
    "docker rootless": (f"{USER_SERVICE}/user.slice/docker-{CID}.scope", of_user(docker)),
    "docker below another prefix": (f"/docker-ce/docker/{CID}", docker),
    "docker with mismatched drivers": (f"/system.slice:docker:{CID}", docker),
    "a cgroup created inside a container": (f"/docker/{CID}/kube-proxy", docker),
    "a systemd inside a container": (f"/system.slice/docker-{CID}.scope/system.slice/containerd.service", docker),
    "docker in docker": (f"/docker/{CID}/docker/{INNER}", replace(docker, id=INNER, outer_container_id=CID)),
    "docker in docker in docker": (
        f"/docker/{CID}/docker/{INNER}/docker/{THIRD}",
        replace(docker, id=THIRD, outer_container_id=CID),
    ),
    "one container in a cgroup that it created": (f"/docker/{CID}/docker/{INNER}/docker/{CID}", docker),
    "one container named twice": (f"/docker/{CID}/docker/{CID}", docker),
    "a removed cgroup": (f"/docker/{CID} (deleted)", docker),
    "a step of docker build": (
        "/docker/buildkit/5cf82fwiumld3vcs5d5l5pzyv",
        WorkloadRef(WorkloadKind.CONTAINER, "5cf82fwiumld3vcs5d5l5pzyv", runtime="buildkit"),
    ),
    "a step of docker build, systemd driver": (
        "/system.slice/docker-5cf82fwiumld3vcs5d5l5pzyv.scope",
        WorkloadRef(WorkloadKind.CONTAINER, "5cf82fwiumld3vcs5d5l5pzyv", runtime="buildkit"),
    ),
    # Kubernetes, cgroupfs driver: the path does not contain the runtime
    "burstable pod": (f"/kubepods/burstable/pod{UID}/{CID}", in_pod(unknown_runtime)),
    "best-effort pod": (f"/kubepods/besteffort/pod{UID}/{CID}", in_pod(unknown_runtime)),
    "guaranteed pod": (f"/kubepods/pod{UID}/{CID}", in_pod(unknown_runtime)),
    "cri-o with the cgroupfs driver": (f"/kubepods/burstable/pod{UID}/crio-{CID}", in_pod(crio)),
    "cri-o scope in a cgroupfs pod": (f"/kubepods/besteffort/pod{UID}/crio-{CID}.scope", in_pod(crio)),
    "a Kata sandbox": (f"/kubepods/pod{UID}/kata_{CID}", in_pod(unknown_runtime)),
    # Kubernetes, systemd driver
    "containerd in a best-effort pod": (
        f"/kubepods.slice/kubepods-besteffort.slice/kubepods-besteffort-pod{SLICE_UID}.slice/cri-containerd-{CID}.scope",
        in_pod(containerd),
    ),
    "containerd in a burstable pod": (f"{KUBEPODS}/{POD_SLICE}/cri-containerd-{CID}.scope", in_pod(containerd)),
    "containerd in a guaranteed pod": (
        f"/kubepods.slice/kubepods-pod{SLICE_UID}.slice/cri-containerd-{CID}.scope",
        in_pod(containerd),
    ),
    "containerd in a directory of its own": (f"{KUBEPODS}/{POD_SLICE}/cri-containerd/{CID}", in_pod(containerd)),
    "docker in a pod": (f"{KUBEPODS}/{POD_SLICE}/docker-{CID}.scope", in_pod(docker)),
    "cri-dockerd in a pod": (f"{KUBEPODS}/{POD_SLICE}/cri-dockerd-{CID}.scope", in_pod(docker)),
    "cri-o": (f"{KUBEPODS}/{POD_SLICE}/crio-{CID}.scope", in_pod(crio)),
    "cri-o with a cgroup below": (f"{KUBEPODS}/{POD_SLICE}/crio-{CID}.scope/container", in_pod(crio)),
    "static pod": (
        f"{KUBEPODS}/kubepods-burstable-pod{STATIC_UID}.slice/cri-containerd-{CID}.scope",
        in_pod(containerd, STATIC_UID),
    ),
    "static pod with the cgroupfs driver": (
        f"/kubepods/burstable/pod{STATIC_UID}/{CID}",
        in_pod(unknown_runtime, STATIC_UID),
    ),
    "mismatched drivers": (f"/{POD_SLICE}:cri-containerd:{CID}", in_pod(containerd)),
    "mismatched drivers below containerd": (
        f"/system.slice/containerd.service/{POD_SLICE}:cri-containerd:{CID}",
        in_pod(containerd),
    ),
    "kubelet with a cgroup root": (
        f"/kubelet.slice/kubelet-kubepods.slice/kubelet-kubepods-pod{SLICE_UID}.slice/cri-containerd-{CID}.scope",
        in_pod(containerd),
    ),
    "kind with the cgroupfs driver": (
        f"/docker/{CID}/kubelet/kubepods/burstable/pod{UID}/{INNER}",
        replace(in_pod(unknown_runtime), id=INNER, outer_container_id=CID),
    ),
    "kind with the systemd driver": (
        f"/system.slice/docker-{CID}.scope/kubelet.slice/kubelet-pod{SLICE_UID}.slice/cri-containerd-{INNER}.scope",
        replace(in_pod(containerd), id=INNER, outer_container_id=CID),
    ),
    "kind on podman": (
        f"/machine.slice/libpod-{CID}.scope/container/{POD_SLICE}/cri-containerd-{INNER}.scope",
        replace(in_pod(containerd), id=INNER, outer_container_id=CID),
    ),
    "docker in docker in a pod": (
        f"/kubepods/burstable/pod{UID}/{CID}/docker/{INNER}",
        replace(in_pod(docker), id=INNER, outer_container_id=CID),
    ),
    "a pod of kind in a pod": (
        f"/kubepods/pod{OTHER_UID}/{CID}/kubelet/kubepods/pod{UID}/{INNER}",
        replace(in_pod(unknown_runtime, OTHER_UID), id=INNER, outer_container_id=CID),
    ),
    "the monitor of cri-o": (f"{KUBEPODS}/{POD_SLICE}/crio-conmon-{CID}.scope", HOST_WORKLOAD),
    "a pod without a container": (f"{KUBEPODS}/{POD_SLICE}", HOST_WORKLOAD),
    # Podman
    "podman": (f"/machine.slice/libpod-{CID}.scope", podman),
    "podman with a cgroup below": (f"/machine.slice/libpod-{CID}.scope/container", podman),
    "podman rootless": (f"{USER_SERVICE}/user.slice/libpod-{CID}.scope/container", of_user(podman)),
    "podman pod": (f"/machine.slice/machine-libpod_pod_{INNER}.slice/libpod-{CID}.scope", podman),
    "podman in a unit": (f"/system.slice/vllm.service/libpod-payload-{CID}", podman),
    "podman rootless in a unit": (f"{USER_SERVICE}/app.slice/vllm.service/libpod-payload-{CID}", of_user(podman)),
    "podman with the cgroupfs driver": (f"/libpod_parent/libpod-{CID}", podman),
    "podman pod with the cgroupfs driver": (f"/libpod_parent/{INNER}/libpod-{CID}", podman),
    "the monitor of podman": (f"/machine.slice/libpod-conmon-{CID}.scope", HOST_WORKLOAD),
    "the monitor of podman in a unit": ("/system.slice/vllm.service/runtime", unit("vllm.service")),
    # containerd and bare runtimes
    "ctr": ("/default/llama-1.b", WorkloadRef(WorkloadKind.CONTAINER, "llama-1.b", runtime="containerd")),
    "ctr in the namespace of Kubernetes": (f"/k8s.io/{CID}", containerd),
    "ctr in the namespace of Docker": (f"/moby/{CID}", containerd),
    "ctr with a cgroup below": ("/default/c1/init", WorkloadRef(WorkloadKind.CONTAINER, "c1", runtime="containerd")),
    "nerdctl": (f"/system.slice/nerdctl-{CID}.scope", containerd),
    "nerdctl rootless": (f"{USER_SERVICE}/user.slice/nerdctl-{CID}.scope", of_user(containerd)),
    "nerdctl with the cgroupfs driver": (f"/default/{CID}", containerd),
    "runc": ("/system.slice/runc-job_1.scope", WorkloadRef(WorkloadKind.CONTAINER, "job_1", runtime="runc")),
    "crun": (f"{USER_SERVICE}/crun-web.scope", of_user(WorkloadRef(WorkloadKind.CONTAINER, "web", runtime="crun"))),
    "a container at the root": (f"/{CID}", unknown_runtime),
    # Other platforms
    "ecs": (f"/ecs/{TASK}/{CID}", replace(docker, runtime="ecs")),
    "ecs with the name of the cluster": (f"/ecs/training/{TASK}/{CID}", replace(docker, runtime="ecs")),
    "ecs on Fargate": (
        f"/ecs/{TASK}/{TASK}-2128315672",
        WorkloadRef(WorkloadKind.CONTAINER, f"{TASK}-2128315672", runtime="ecs"),
    ),
    "ecs with the systemd driver": (f"/ecstasks.slice/ecstasks-{TASK}.slice/docker-{CID}.scope", docker),
    "garden": (
        "/system.slice/garden.service/garden/6f265890-5165-7fab-6b52-18d1",
        WorkloadRef(WorkloadKind.CONTAINER, "6f265890-5165-7fab-6b52-18d1", runtime="garden"),
    ),
    "mesos, nested": (
        f"/mesos/{UID}/mesos/077d75a1-d7b6-4e55-8114-13f925fe4f49",
        WorkloadRef(
            WorkloadKind.CONTAINER, "077d75a1-d7b6-4e55-8114-13f925fe4f49", runtime="mesos", outer_container_id=UID
        ),
    ),
    # LXC
    "lxc": ("/lxc/trainer", lxc("trainer")),
    "lxc on Proxmox": ("/lxc/101/ns/system.slice/ollama.service", lxc("101")),
    "lxc with payload": ("/lxc.payload.trainer", lxc("trainer")),
    "lxc of an Incus project": ("/lxc.payload.user-1000_trainer/init.scope", lxc("user-1000_trainer")),
    "lxc with a payload directory": ("/lxc.payload/trainer", lxc("trainer")),
    "lxc with a directory set": ("/lxc/lxc.payload.trainer/system.slice/ollama.service", lxc("trainer")),
    "lxc in lxc": (
        "/lxc.payload.outer/lxc.payload.inner",
        replace(lxc("inner"), outer_container_id="outer"),
    ),
    "docker in lxc": (
        f"/lxc.payload.trainer/system.slice/docker-{CID}.scope",
        replace(docker, outer_container_id="trainer"),
    ),
    "docker in docker in lxc": (
        f"/lxc/101/ns/system.slice/docker-{CID}.scope/docker/{INNER}",
        replace(docker, id=INNER, outer_container_id="101"),
    ),
    "lxc in docker": (f"/docker/{CID}/lxc.payload.trainer", docker),
    "docker in nspawn": (
        f"/machine.slice/systemd-nspawn@lab.service/payload/system.slice/docker-{CID}.scope",
        replace(docker, outer_container_id="systemd-nspawn@lab.service"),
    ),
    "the monitor of lxc": ("/lxc.monitor.trainer", HOST_WORKLOAD),
    "the monitor of lxc with a directory set": ("/lxc/lxc.monitor.trainer", HOST_WORKLOAD),
    # Slurm
    "slurm, cgroup v1": ("/slurm/uid_1000/job_4711/step_0/task_0", job("4711", "0")),
    "slurm, several nodes on a host": ("/slurm_node01/uid_1000/job_4711/step_batch", job("4711", "batch")),
    "slurm without a step": ("/slurm/uid_1000/job_4711", job("4711")),
    "slurm, cgroup v2": ("/system.slice/slurmstepd.scope/job_4711/step_0/user/task_0", job("4711", "0")),
    "slurm, cgroup v2, several nodes": (
        "/system.slice/gx10-ac12.example.com_slurmstepd.scope/job_12/step_batch/user/task_special",
        job("12", "batch"),
    ),
    "slurm, the step's own daemon": ("/system.slice/slurmstepd.scope/job_12/step_extern/slurm", job("12", "extern")),
    "slurm, interactive step": (
        "/system.slice/slurmstepd.scope/job_12/step_interactive/user",
        job("12", "interactive"),
    ),
    "slurm, step of a heterogeneous job": (
        "/system.slice/slurmstepd.scope/job_12/step_3+1/user/task_0",
        job("12", "3+1"),
    ),
    "slurm, element of an array": ("/slurm/uid_0/job_12_7/step_0", job("12_7", "0")),
    "slurm in another slice": ("/hpc.slice/slurmstepd.scope/job_12/step_0/user/task_0", job("12", "0")),
    "slurm in lxc": (
        "/lxc.payload.node1/system.slice/slurmstepd.scope/job_12/step_0",
        replace(job("12", "0"), outer_container_id="node1"),
    ),
    "slurm in a machine": (
        "/machine.slice/systemd-nspawn@lab.service/payload/system.slice/slurmstepd.scope/job_12/step_0",
        replace(job("12", "0"), outer_container_id="systemd-nspawn@lab.service"),
    ),
    "a user who imitates slurm": (f"{USER_SERVICE}/slurmstepd.scope/job_12/step_0/user/task_0", HOST_WORKLOAD),
    "a service that imitates slurm": ("/system.slice/x.service/uid_0/job_12/step_0", unit("x.service")),
    # users
    "a user's system container": (f"{USER_SERVICE}/lxc.payload.trainer", of_user(lxc("trainer"))),
    "nested in a user's container": (
        f"{USER_SERVICE}/user.slice/libpod-{CID}.scope/docker/{INNER}",
        of_user(replace(docker, id=INNER, outer_container_id=CID)),
    ),
    "another user, by a cgroup of this user": (
        f"{USER_SERVICE}/user.slice/user-1001.slice/docker-{CID}.scope",
        of_user(docker),
    ),
    "a user in a container": (f"/docker/{CID}{USER_SERVICE}/jupyter.service", docker),
    "the slice of a user below another one": (f"/x.slice{USER_SERVICE}/docker-{CID}.scope", docker),
    "a user, through a cgroup namespace": (f"/../..{USER_SERVICE}/docker-{CID}.scope", of_user(docker)),
    "the manager of another user": (f"/../user@1001.service/user.slice/docker-{CID}.scope", of_user(docker, 1001)),
    "root's own slice": (f"/user.slice/user-0.slice/user@0.service/docker-{CID}.scope", docker),
    "podman in slurm": (f"/system.slice/slurmstepd.scope/job_12/step_0/user/task_0/libpod-{CID}", podman),
    "slurm's daemon without a job": ("/system.slice/slurmstepd.scope/system", unit("slurmstepd.scope")),
    # systemd
    "service": ("/system.slice/ollama.service", unit("ollama.service")),
    "template": ("/system.slice/system-vllm.slice/vllm@7b.service", unit("vllm@7b.service")),
    "escaped name": (r"/system.slice/srv-my\x2dmodel.service", unit(r"srv-my\x2dmodel.service")),
    "delegated sub-cgroup": ("/system.slice/ollama.service/payload", unit("ollama.service")),
    "service of a user": (f"{USER_SERVICE}/app.slice/jupyter.service", of_user(unit("jupyter.service"))),
    "service managed by a service": ("/system.slice/flux.service/job-1.service", unit("job-1.service")),
    "snap": ("/system.slice/snap.ollama.ollama.service", unit("snap.ollama.ollama.service")),
    "name escaped against the kernel's files": ("/system.slice/_cpu.service", unit("cpu.service")),
    "service in its own slice": ("/gpu.slice/trainer.service", unit("trainer.service")),
    "transient scope": ("/system.slice/run-r8f3a.scope", unit("run-r8f3a.scope")),
    "nspawn machine": ("/machine.slice/systemd-nspawn@lab.service", unit("systemd-nspawn@lab.service")),
    "service inside an nspawn machine": (
        "/machine.slice/systemd-nspawn@lab.service/payload/system.slice/ollama.service",
        unit("systemd-nspawn@lab.service"),
    ),
    "service inside a machine's scope": (
        "/machine.slice/machine-lab.scope/payload/system.slice/ollama.service",
        unit("machine-lab.scope"),
    ),
    "virtual machine": (
        r"/machine.slice/machine-qemu\x2d1\x2ddebian12.scope/libvirt/emulator",
        unit(r"machine-qemu\x2d1\x2ddebian12.scope"),
    ),
    # the host
    "login session": ("/user.slice/user-1000.slice/session-3.scope", HOST_WORKLOAD),
    "systemd of a user": (f"{USER_SERVICE}/init.scope", HOST_WORKLOAD),
    "terminal on a desktop": (f"{USER_SERVICE}/app.slice/vte-spawn-f22f14d2.scope", HOST_WORKLOAD),
    "init": ("/init.scope", HOST_WORKLOAD),
    "slice": ("/system.slice", HOST_WORKLOAD),
    "old login session": ("/user/1000.user/c2.session", HOST_WORKLOAD),
    "unknown path": ("/process_api/8a554046779c7993741140a7350282ff", HOST_WORKLOAD),
    # through a private cgroup namespace
    "the root": ("/", None),
    "the parent of the namespace": ("/..", None),
    "no known form outside the namespace": ("/../../podB/c2", None),
    "a sibling container": (f"/../{CID}", unknown_runtime),
    "a sibling's scope": (f"/../cri-containerd-{CID}.scope", containerd),
    "another pod": (f"/../../pod{UID}/{CID}", in_pod(unknown_runtime)),
    "another pod's slice": (f"/../../{POD_SLICE}/crio-{CID}.scope", in_pod(crio)),
    "another class of pods": (f"/../../../kubepods/besteffort/pod{UID}/{CID}/x", in_pod(unknown_runtime)),
    "another job": ("/../../../../job_12/step_0/user/task_0", job("12", "0")),
    "a service": ("/../ollama.service", unit("ollama.service")),
}


@pytest.mark.parametrize(("path", "expected"), PATHS.values(), ids=PATHS.keys())
def test_a_path_identifies_its_workload(path: str, expected: WorkloadRef | None) -> None:
    assert parse_cgroup(f"0::{path}\n") == expected


@pytest.mark.parametrize(("path", "expected"), PATHS.values(), ids=PATHS.keys())
def test_a_path_has_the_same_workload_in_any_hierarchy_and_next_to_roots(
    path: str, expected: WorkloadRef | None
) -> None:
    v1 = f"12:cpuset:{path}\n11:rdma:/\n4:net_cls,net_prio:{path}\n1:name=systemd:{path}\n0::/\n"

    assert parse_cgroup(v1) == expected


LOOKALIKES = {
    "63 digits": f"/docker/{CID[:-1]}",
    "65 digits": f"/docker/{CID}0",
    "upper case": f"/docker/{CID.upper()}",
    "upper case in a scope": f"/system.slice/docker-{CID.upper()}.scope",
    "not hexadecimal": f"/docker/{CID[:-1]}g",
    "short id": f"/docker/{CID[:12]}",
    "other digits": "/docker/" + "\N{ARABIC-INDIC DIGIT ONE}" * 64,
    "more after the scope": f"/system.slice/docker-{CID}.scope.d",
    "id within a segment": f"/x{CID}",
    "ctr below the top": "/foo/default/c1",
    "ctr with a bad id": "/default/-c1",
    "job without slurm": "/job_7",
    "job that is no number": "/slurm/uid_0/job_x/step_0",
    "pod of podman itself": f"/libpod_parent/{CID}/conmon",
    "service in the middle of a name": "/system.slice/ollama.service.d",
    "bare suffix": "/system.slice/.service",
    "name with a space": "/system.slice/my model.service",
    "name too long for a file system": f"/system.slice/{'a' * 300}.service",
    "lxc without a name": "/lxc/",
    "only a prefix": "/lxc.payload.",
    "user manager": "/user@1000.service",
    "session outside of its slice": "/session-3.scope",
}


@pytest.mark.parametrize("path", LOOKALIKES.values(), ids=LOOKALIKES.keys())
def test_a_similar_path_is_the_host(path: str) -> None:
    assert parse_cgroup(f"0::{path}\n") == HOST_WORKLOAD


def test_the_pod_uid_is_above_the_container() -> None:
    assert parse_cgroup(f"0::/docker/{CID}/pod{UID}\n") == docker


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        pytest.param(
            f"12:pids:/\n9:cpu,cpuacct:/docker/{CID}\n0::/system.slice/containerd.service\n",
            docker,
            id="docker, hybrid",
        ),
        pytest.param(
            f"9:cpu:/mesos/{UID}\n3:pids:/user.slice/user-0.slice/session-2.scope\n2:net_cls:/\n",
            WorkloadRef(WorkloadKind.CONTAINER, UID, runtime="mesos"),
            id="mesos in some hierarchies",
        ),
        pytest.param(
            "5:devices:/slurm/uid_1/job_7/step_0\n1:name=systemd:/system.slice/slurmd.service\n0::/\n",
            job("7", "0"),
            id="slurm in some hierarchies",
        ),
        pytest.param("2:cpu:/lxc/a\n1:name=systemd:/lxc/a/system.slice/b.service\n", lxc("a"), id="lxc around a unit"),
        pytest.param("3:cpu:/\n2:pids:/system.slice\n0::/system.slice/a.service\n", unit("a.service"), id="unit"),
        pytest.param("3:cpu:/\n0::/init.scope\n", HOST_WORKLOAD, id="host"),
        pytest.param(
            f"2:cpu:/docker/{CID}/system.slice/containerd.service/a/b/c\n1:memory:/docker/{CID}/docker/{INNER}\n",
            replace(docker, id=INNER, outer_container_id=CID),
            id="innermost container of all lines",
        ),
        pytest.param(
            f"2:cpu:/{CID}\n1:memory:/kubepods/pod{UID}/{CID}\n0::/foo/{CID}\n",
            in_pod(unknown_runtime),
            id="with its pod",
        ),
        pytest.param(
            f"2:cpu:/docker/{CID}\n1:memory:/kubepods/pod{UID}/{CID}\n",
            in_pod(unknown_runtime),
            id="pod before runtime",
        ),
        pytest.param(
            f"2:cpu:/docker/{CID}/docker/{INNER}\n1:memory:/docker/{CID}/docker/{INNER}/docker/{THIRD}\n"
            f"0::/docker/f{CID[1:]}/docker/{INNER}\n",
            replace(docker, id=THIRD, outer_container_id=CID),
            id="deepest of three",
        ),
        pytest.param(f"2:cpu:/{CID}\n1:memory:/a/b/{CID}\n0::/docker/{CID}\n", docker, id="with its runtime"),
    ],
)
def test_the_most_specific_line_counts_in_any_order(text: str, expected: WorkloadRef) -> None:
    lines = text.splitlines()

    assert parse_cgroup(text) == expected
    assert parse_cgroup("\n".join(reversed(lines))) == expected


UNUSABLE = {
    "empty": "",
    "blank lines": "\n\n\n",
    "only roots": "12:cpu:/\n1:name=systemd:/\n0::/\n",
    "no path": "0::\n1:cpu:\n",
    "relative path": f"0::docker/{CID}\n",
    "too few fields": f"0:/docker/{CID}\n",
    "no hierarchy id": f"::/docker/{CID}\n",
    "hierarchy id is no number": f"x:cpu:/docker/{CID}\n",
    "hierarchy id in other digits": f"\N{SUPERSCRIPT TWO}:cpu:/docker/{CID}\n",
    "path longer than the kernel writes": f"0::/{'a/' * 2048}{CID}\n",
    "only NUL": "\0" * 100,
    "undecodable": "\udcff\udc80:\udcfe\n",
}


@pytest.mark.parametrize("text", UNUSABLE.values(), ids=UNUSABLE.keys())
def test_an_unusable_text_has_no_workload(text: str) -> None:
    assert parse_cgroup(text) is None


def test_other_line_separators_of_python_do_not_end_a_line() -> None:
    # The kernel rejects only "\n" in the name of a cgroup. A user with a delegated cgroup may choose these names.
    for separator in "\r\v\f\x1c\x85\u2028":
        assert parse_cgroup(f"0::/a{separator}1:cpu:/docker/{CID}\n") == docker
        assert parse_cgroup(f"0::/a{separator}1:cpu:/system.slice/b.service") == unit("b.service")
        assert parse_cgroup(f"0::/a{separator}1:cpu:/lxc.payload.b{separator}") == HOST_WORKLOAD


def test_names_that_are_not_printable_are_not_returned() -> None:
    for odd in ("\0", "\udcff", "\x1b[31m", "é", "\u202e"):
        for form in ("/default/{}", "/lxc/{}", "/system.slice/{}.service", "/runc-{}.scope", "/slurm/uid_1/job_{}"):
            assert parse_cgroup("0::" + form.format(f"a{odd}b")) == HOST_WORKLOAD


PIECES = ("a", "/", "/..", "/ecs/", "/ecs/a", "/lxc/", "/_", "a:", "-pod", "/job_1", "/a.service", "/machine-", CID)


@pytest.mark.parametrize("piece", [*PIECES, "0::/\n", "0:", "\n", "0::/a\n"])
def test_megabytes_of_text_take_linear_time(piece: str) -> None:
    text = "0::/" + piece * (4_000_000 // len(piece))

    started_s = time.process_time()
    parse_cgroup(text)

    assert time.process_time() - started_s < 5.0


@pytest.mark.long
@pytest.mark.parametrize("piece", PIECES)
def test_many_paths_of_maximum_length_take_linear_time(piece: str) -> None:
    path = ("/" + piece * 4096)[:4090]
    text = "".join(f"0::{path}{number:03}\n" for number in range(300))

    started_s = time.process_time()
    parse_cgroup(text)

    # It takes a quarter of a second. With a number of steps that grows with the square it would take minutes.
    assert time.process_time() - started_s < 5.0


# ---------------------------------------------------------------------------- tenants

OTHER = "fedcba9876543210" * 4


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("0::/system.slice/ssh.service\n", "user 7"),
        ("0::/\n", "user 7"),
        ("", "user 7"),
        (f"0::/system.slice/docker-{OTHER}.scope\n", OTHER),
        (f"0::/system.slice/docker-{OTHER}.scope/docker-{'0' * 64}.scope\n", OTHER),  # a name made inside
        (f"0::/user.slice/user-1000.slice/user@1000.service/libpod-{OTHER}.scope\n", "user 1000"),
        ("0::/user.slice/user-1000.slice/session-3.scope\n", "user 1000"),  # with any of its subordinate ids
    ],
)
def test_a_tenant_is_what_only_root_can_choose(text: str, expected: str) -> None:
    assert tenant(text, 7) == expected
