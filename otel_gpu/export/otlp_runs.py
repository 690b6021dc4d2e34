"""Resources of OTLP requests as runs of pieces, with the time of a point between each piece and the next.

All points of a request have the same time, so ``time.join`` writes it. There is one piece for a point: its value, its
attributes, and all that stands before the time of the next one. A value is written into its piece in place. A cycle
finds everything out of the processor's caches, so it is the number of objects touched that counts.

Metrics that stand together are one run while nobody gains or loses a value of them. A metric of which somebody of a
Resource does is ``loose``: it is in another run than those that are not, which is then all that is written anew.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import groupby
from operator import attrgetter
from typing import Final, NamedTuple, TypeAlias

from otel_gpu.export.metrics_data import ResourceKey
from otel_gpu.export.otlp_messages import (
    DOUBLE,
    FIGURE_BYTES,
    INT,
    TIME_BYTES,
    around_points,
    figure_of,
    heading_of,
    own_attributes,
    point_head,
    write_double,
    write_whole,
)
from otel_gpu.metrics.catalogue import Kind, Metric
from otel_gpu.metrics.collection import MetricBlock
from otel_gpu.metrics.series import Cells
from otel_gpu.metrics.tags import Attributes

Piece: TypeAlias = bytes | bytearray
Run: TypeAlias = list[Piece]
"""What stands before the first time, and a piece for each point, which begins with its value."""

Around: TypeAlias = tuple[bytes, bytes]
"""What stands before the time of a point, and its attributes."""

_NOWHERE: Final = bytearray()
_MOST_FORMS: Final = 4


@dataclass(slots=True, eq=False)
class Owner:
    """A Resource: its parts in the order of the metrics, and the runs they are written in, after the ``frame``.

    Workloads with the same attributes have the same.
    """

    key: ResourceKey
    data: bytes
    parts: list[Part] = field(default_factory=list)
    runs: list[Run] = field(default_factory=list)
    frame: bytes = b""
    parts_bytes: int = 0
    size_bytes: int = 0

    def stack(self, surroundings: Surroundings) -> None:
        """Write all parts anew: neighbours in one run where they are loose, and where they are not."""
        self.runs, self.parts_bytes = [], 0
        for is_loose, neighbours in groupby(self.parts, attrgetter("is_loose")):
            parts = [*neighbours]
            around = [surroundings.of(part) for part in parts]
            if is_loose:
                bundle = Bundle(self, parts, around)
                bundle.take_form(surroundings)
                for part in parts:
                    part.bundle = bundle
                self.runs.append(bundle.run)
            else:
                run, size_bytes = _written(parts, around, surroundings)
                self.runs.append(run)
                self.parts_bytes += size_bytes

    def add_to(self, pieces: list[Piece]) -> None:
        """Put it after others. No time stands between two runs: the last piece of one is the first of the next."""
        before: Piece = self.frame
        if pieces:
            before = pieces.pop() + before
        for run in self.runs:
            pieces.append(before + run[0])
            pieces += run[1:]
            before = pieces.pop()
        pieces.append(before)


@dataclass(slots=True, eq=False)
class Part:
    """One Resource's points of a metric: whose numbers they are, and when somebody last gained or lost a value."""

    owner: Owner
    plan: Plan
    numbers: Sequence[int]
    is_loose: bool = False
    changed_cycle: int = 0
    bundle: Bundle | None = None

    def put(self, pieces: Sequence[bytearray]) -> None:
        """Have its values in these pieces from now on."""
        values, places = self.plan.cells.values, self.plan.pieces
        for number, piece in zip(self.numbers, pieces, strict=True):
            value = values[number]
            if value is not None:
                places[number] = piece
                if isinstance(value, int):
                    write_whole(piece, 0, INT, value)
                else:
                    write_double(piece, 0, DOUBLE, value)


class Form(NamedTuple):
    """Parts as they are while the same of their points have a value: the run, and of each part the pieces by number."""

    run: Run
    pieces: list[list[bytearray]]
    size_bytes: int


@dataclass(slots=True, eq=False)
class Bundle:
    """Loose parts that are neighbours, in a run of their own, and what stands around their points.

    Who comes and goes mostly comes as before, so a few forms are kept, by which of the points have a value.
    """

    owner: Owner
    parts: Sequence[Part]
    around: Sequence[Sequence[Around]]
    run: Run = field(default_factory=list)
    size_bytes: int = 0
    forms: dict[tuple[bool, ...], Form] = field(default_factory=dict)

    def take_form(self, surroundings: Surroundings) -> None:
        """Write them anew, by who has a value now."""
        having: list[bool] = []
        for part in self.parts:
            values = part.plan.cells.values
            having += [values[number] is not None for number in part.numbers]
        form = self.forms.get(key := tuple(having))
        if form is None:
            if len(self.forms) >= _MOST_FORMS:
                self.forms.clear()
            run, size_bytes = _written(self.parts, self.around, surroundings)
            pieces = [[part.plan.pieces[number] for number in part.numbers] for part in self.parts]
            form = self.forms[key] = Form(run, pieces, size_bytes)
        else:
            for part, those in zip(self.parts, form.pieces, strict=True):
                part.put(those)
        self.run[:] = form.run
        self.owner.parts_bytes += form.size_bytes - self.size_bytes
        self.size_bytes = form.size_bytes


@dataclass(slots=True, eq=False)
class Plan:
    """A metric laid out, and the family last written there. Value number n is of part ``of[n]``, and in ``pieces[n]``.

    It is good for times from ``good_from_ns`` on: no point may start after its time.
    """

    family: MetricBlock
    cells: Cells
    good_from_ns: float
    parts: list[Part]
    of: list[Part]
    pieces: list[bytearray]

    def is_of(self, cells: Cells, time_ns: int) -> bool:
        """Whether these are its series still."""
        return self.cells.series is cells.series and self.good_from_ns <= time_ns

    def rewrite(self, family: MetricBlock, cells: Cells, others: set[Part]) -> None:
        """Write the values that changed; parts in which somebody has one, or has none, since are the ``others``."""
        before, values, pieces = self.cells.values, cells.values, self.pieces
        for number in cells.changed(self.cells):
            value = values[number]
            if value is None or before[number] is None:
                others.add(self.of[number])
            elif isinstance(value, int):
                write_whole(pieces[number], 0, INT, value)
            else:
                write_double(pieces[number], 0, DOUBLE, value)
        self.family, self.cells = family, cells


class Surroundings:
    """What stands around values, in a cycle at ``time_ns``.

    Attributes are written once for all metrics that have them, and kept for the cycle only: their bytes are in the
    pieces after it.
    """

    def __init__(self) -> None:
        self.time_ns = 0
        self._headings: dict[str, bytes] = {}
        # By address; what is there is held on to, so that nothing else can be.
        self._encoded: dict[int, tuple[Attributes, bytes]] = {}

    def forget(self) -> None:
        """The cycle is over."""
        self._encoded.clear()

    def of(self, part: Part) -> Sequence[Around]:
        """What stands around each point of a part, with or without a value."""
        series, time_ns = part.plan.cells.series, self.time_ns
        has_start = part.plan.family.metric.kind is not Kind.GAUGE
        found = []
        for number in part.numbers:
            attributes = self._attributes(series.attributes[number])
            start_ns = series.starts[number] if has_start else None
            # The wall clock may have been set back since: a start after the end would be refused.
            head = point_head(min(start_ns, time_ns) if start_ns else None, len(attributes))
            found.append((head, attributes))
        return found

    def _attributes(self, attributes: Attributes) -> bytes:
        found = self._encoded.get(id(attributes))
        if found is None:
            found = self._encoded[id(attributes)] = attributes, own_attributes(attributes)
        return found[1]

    def edges(self, metric: Metric, points_bytes: int) -> tuple[bytes, bytes]:
        """What stands before and after so many bytes of a metric's points."""
        heading = self._headings.get(metric.name)
        if heading is None:
            heading = self._headings[metric.name] = heading_of(metric)
        return around_points(metric, heading, points_bytes, deltas=False)


def unwritten(size: int) -> list[bytearray]:
    """Pieces of so many values that have none yet."""
    return [_NOWHERE] * size


def _written(parts: Sequence[Part], around: Sequence[Sequence[Around]], surroundings: Surroundings) -> tuple[Run, int]:
    """A run of these parts, which one Resource has one after the other, and how long it is with its times."""
    texts = [b""]
    places: list[tuple[list[bytearray], int]] = []
    size_bytes = 0
    for part, around_each in zip(parts, around, strict=True):
        values, pieces = part.plan.cells.values, part.plan.pieces
        points = [
            (value, around_one)
            for number, around_one in zip(part.numbers, around_each, strict=True)
            if (value := values[number]) is not None
        ]
        if points:
            size_bytes += _write(part.plan.family.metric, points, surroundings, texts)
            places += [(pieces, number) for number in part.numbers if values[number] is not None]
    run: Run = [texts[0]]
    for (pieces, number), text in zip(places, texts[1:], strict=True):
        pieces[number] = bytearray(text)  # of a whole text: one that grows takes room for more
        run.append(pieces[number])
    return run, size_bytes


def _write(
    metric: Metric, points: Sequence[tuple[float, Around]], surroundings: Surroundings, texts: list[bytes]
) -> int:
    """Put points of a metric after the last of the texts, each of which adds one; how long all of it is."""
    points_bytes = sum([len(head) + TIME_BYTES + FIGURE_BYTES + len(attributes) for _, (head, attributes) in points])
    begin, tail = surroundings.edges(metric, points_bytes)
    texts[-1] += begin
    for value, (head, attributes) in points:
        texts[-1] += head
        texts.append(figure_of(value) + attributes)
    texts[-1] += tail
    return len(begin) + points_bytes + len(tail)
