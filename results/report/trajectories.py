"""The trajectory of tau over the steps of a mitigation, as a picture and in words."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable
from dataclasses import dataclass

from markupsafe import Markup

from seesaw.results.printable import printable_markup
from seesaw.results.report.heatmap import open_svg
from seesaw.results.tables.mitigation import STRATEGIES, Case, StepRow, is_reached

__all__ = ["Trajectory", "trajectories"]


@dataclass(frozen=True)
class Trajectory:
    """A case as the report shows it (macro `case` of mitigation.html.j2)."""

    case: Case
    why: str  #: which axis the strategy mitigates next
    picture: Markup

    @property
    def has_errors(self) -> bool:
        """Whether the picture shows a standard error."""
        return any(step.tau_se > 0 for step in self.case.trajectory)

    @property
    def has_predictions(self) -> bool:
        """Whether the picture shows a prediction."""
        return not all(math.isnan(step.predicted) for step in self.case.trajectory)


_USERS = "the axis that the user's own code chooses"


def trajectories(cases: Iterable[Case]) -> list[Trajectory]:
    """The trajectory of every case."""
    return [Trajectory(case, STRATEGIES.get(case.strategy, _USERS), Markup(_picture(case))) for case in cases]


_LEFT, _TOP, _HEIGHT, _PITCH = 34, 18, 130, 104  # of the plot and between steps, in px
# colours of tau above and below epsilon; the shapes differ too, and both colours are visible on white and on black
_ABOVE, _BELOW = "#d9772b", "#4c8fc9"


def _picture(case: Case) -> str:
    """tau by step as an `<svg>` element: measured with its standard error, predicted (rings), epsilon dashed."""
    values = (n for s in case.trajectory for n in (s.tau, s.tau + s.tau_se, s.predicted) if not math.isnan(n))
    top = max(1.0, case.epsilon, *values)
    right, bottom = _LEFT + _PITCH * len(case.trajectory), _TOP + _HEIGHT
    points = [(_LEFT + _PITCH * (i + 0.5), bottom - s.tau / top * _HEIGHT, s) for i, s in enumerate(case.trajectory)]
    level = bottom - case.epsilon / top * _HEIGHT
    pairs = [pair for pair in itertools.pairwise(points) if not any(math.isnan(step.tau) for *_, step in pair)]
    lines = "".join(f"M{x:.1f} {y:.1f}L{u:.1f} {v:.1f}" for (x, y, _), (u, v, _) in pairs)
    parts = [
        open_svg((right + 50, bottom + 24), _sentence(case)),
        '<g fill="none" stroke="currentColor">'
        f'<path d="M{_LEFT} {_TOP}V{bottom}H{right}" stroke-opacity="0.3"/>'
        f'<path d="M{_LEFT} {level:.1f}H{right}" stroke-dasharray="5 4"/><path d="{lines}" stroke-width="1.5"/></g>',
        f'<text x="{_LEFT - 6}" y="{bottom + 4}" text-anchor="end">0</text>',
        f'<text x="{_LEFT - 6}" y="{_TOP + 4}" text-anchor="end">{top:.3g}</text>',
        f'<text x="{right + 4}" y="{level + 4:.1f}" text-anchor="start" font-style="italic">'
        f"\N{GREEK SMALL LETTER EPSILON} {case.epsilon:g}</text>",
        *(_spread(x, y, step.tau_se / top * _HEIGHT, bottom) for x, y, step in points),
        *(_point(x, y, step, case, bottom - step.predicted / top * _HEIGHT) for x, y, step in points),
    ]
    for x, _, step in points:
        name = step.axis or "before"
        shown = name if len(name) <= 15 else name[:14] + "\N{HORIZONTAL ELLIPSIS}"
        tooltip = f"<title>{printable_markup(name)}</title>"
        parts.append(f'<text x="{x:.1f}" y="{bottom + 16}">{tooltip}{printable_markup(shown)}</text>')
    return "".join([*parts, "</g></svg>"])


def _spread(x: float, y: float, error: float, bottom: float) -> str:
    """A bar of one standard error in each direction; "" if the error is unknown or 0."""
    if math.isnan(y + error) or not error:
        return ""
    low = min(y + error, bottom)
    return f'<line x1="{x:.1f}" x2="{x:.1f}" y1="{y - error:.1f}" y2="{low:.1f}" stroke="currentColor"/>'


def _point(x: float, y: float, step: StepRow, case: Case, predicted: float) -> str:
    ring = f'<circle cx="{x:.1f}" cy="{predicted:.1f}" r="5" fill="none" stroke="currentColor" stroke-opacity="0.6"/>'
    shown = "" if math.isnan(predicted) else ring
    if math.isnan(y):
        return f'<text x="{x:.1f}" y="{_TOP + _HEIGHT - 6}">n/a</text>{shown}'
    if is_reached(step.tau, case.epsilon):
        shown += f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3.5" fill="{_BELOW}"/>'
    else:
        shown += f'<rect x="{x - 3.5:.1f}" y="{y - 3.5:.1f}" width="7" height="7" fill="{_ABOVE}"/>'
    shown += f'<text x="{x + 7:.1f}" y="{y - 5:.1f}" text-anchor="start">{step.tau:.2f}</text>'
    return f"<g><title>{printable_markup(_after(step))}</title>{shown}</g>"


def _after(step: StepRow) -> str:
    error = "" if math.isnan(step.tau_se) else f" \N{PLUS-MINUS SIGN} {step.tau_se:.2f}"
    measured = "undefined" if math.isnan(step.tau) else f"{step.tau:.2f}{error}"
    foreseen = "" if math.isnan(step.predicted) else f" (predicted {step.predicted:.2f})"
    return f"{measured} after {step.axis}{foreseen}" if step.axis else f"{measured} before any mitigation"


def _sentence(case: Case) -> str:
    """The picture in words, for screen readers."""
    words = ", ".join(map(_after, case.trajectory))
    return f"tau of {case.subject} on {case.model}, {case.strategy}: {words}; epsilon {case.epsilon:g}"
