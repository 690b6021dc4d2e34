from __future__ import annotations

from otel_gpu.view.builder import COLOURS, Claimant, Palette


def on(key: str, *gpus: str, since_ns: int = 0) -> Claimant:
    return Claimant(key, gpus or ("GPU-0",), since_ns)


def test_workloads_on_one_gpu_have_different_colours_as_far_as_there_are_any() -> None:
    palette = Palette()
    colours = palette.update([on(f"w{number}") for number in range(COLOURS)])
    assert sorted(colours.values()) == list(range(COLOURS))
    more = palette.update([*(on(f"w{number}") for number in range(COLOURS)), on("one more")])
    assert 0 <= more["one more"] < COLOURS


def test_a_colour_is_kept_and_does_not_depend_on_the_order() -> None:
    palette, other = Palette(), Palette()
    both = palette.update([on("first"), on("second")])
    assert other.update([on("second"), on("first")]) == both
    assert palette.update([on("second")]) == {"second": both["second"]}
    assert palette.update([on("first"), on("second")])["second"] == both["second"]


def test_an_older_workload_does_not_give_way_to_a_newer_one() -> None:
    alone = {key: Palette().update([on(key)])[key] for key in map(str, range(50))}
    one, other = next((a, b) for a in alone for b in alone if a != b and alone[a] == alone[b])
    colours = Palette().update([on(one, since_ns=2), on(other, since_ns=1)])
    assert colours[other] == alone[other]
    assert colours[one] != alone[one]


def test_colours_do_not_depend_on_whether_workloads_come_together_or_one_by_one() -> None:
    workloads = [on(f"w{number}", f"GPU-{number % 3}", since_ns=number) for number in range(3 * COLOURS)]
    one_by_one = Palette()
    for count in range(len(workloads)):
        one_by_one.update(workloads[:count])
    colours = one_by_one.update(workloads)
    assert Palette().update(workloads) == Palette().update(workloads[::-1]) == colours
    for number in range(3):
        assert sorted(colours[each.key] for each in workloads[number::3]) == list(range(COLOURS))


def test_workloads_on_different_gpus_do_not_compete() -> None:
    alone = {key: Palette().update([on(key)])[key] for key in map(str, range(50))}
    one, other = next((a, b) for a in alone for b in alone if a != b and alone[a] == alone[b])
    assert Palette().update([on(one, "GPU-0"), on(other, "GPU-1")]) == {one: alone[one], other: alone[other]}
