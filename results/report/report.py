"""The report of a run: one self-contained HTML file, made from the run directory and the store."""

from __future__ import annotations

import base64
import hashlib
import math
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from seesaw.results.atomic_write import atomic_write
from seesaw.results.errors import RunDirectoryError
from seesaw.results.printable import printable
from seesaw.results.report.example_images import ExampleImages
from seesaw.results.report.findings import Findings
from seesaw.results.report.heatmap import colour_bar, signed
from seesaw.results.report.misreading_section import misreading_section
from seesaw.results.report.mitigation_section import mitigation_section
from seesaw.results.report.sweep_section import sweep_section
from seesaw.results.report.two_vlms_section import two_vlms_section
from seesaw.results.tables.misreading import read_misreading, read_two_vlms
from seesaw.results.tables.run_reader import MitigationTables, Run
from seesaw.results.words import prompt_label

__all__ = ["draw_report", "environment"]

_PAGE = "report.html.j2"
_IMAGE = "<img "  # in a page that shows images
_LISTED = 100  # rows of a list of failures, drop rates and so on; the tables have all of them


def draw_report(run: Run, findings: Findings | None, store: str, keep_images: str = "") -> Path:
    """Write `report/index.html` of a run, with example images from `store` ("": none); returns its path.

    The report covers the sweep, the mitigations, or both; `findings` are what was decided about the sweep. The same
    files give the same bytes. Where the store lacks an image, a note takes its place. With `keep_images`, a report with
    images is not replaced by one without any; it is the reason why there are none, for the message.

    Raises:
        RunDirectoryError: an answer or image cannot be read, the report cannot be written, or `keep_images` forbids it.
    """
    templates = environment()
    page = templates.get_template(_PAGE).render(_context(run, findings, store), policy=_policy(templates))
    path = run.path / "report" / "index.html"
    if keep_images and _IMAGE not in page and path.is_file() and _IMAGE in path.read_text(encoding="utf-8"):
        where = f" in the store '{store}'" if store else ""
        raise RunDirectoryError(
            f"{keep_images}{where}, so '{path}', which shows images, is left as it is; to write it again, say where "
            f"the images are: seesaw report {run.path} --store STORE"
        )
    try:
        path.parent.mkdir(exist_ok=True)
        with atomic_write(path) as file:
            file.write(page.encode())
    except OSError as error:
        raise RunDirectoryError(f"'{path}' cannot be written: {error.strerror}") from None
    return path


def environment() -> Environment:
    """The templates of this folder, with the filters that they use."""
    templates = Environment(
        loader=PackageLoader("seesaw.results.report", ""),
        autoescape=True,
        finalize=_finalize,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    templates.filters |= {"signed": signed, "percent": _percent, "count": lambda n: f"{n:,}", "clock": _clock}
    templates.filters |= {"prompt_label": prompt_label}
    return templates


def _finalize(value: object) -> object:
    """What a template prints: text from others without control characters, our own pictures unchanged."""
    return printable(value) if isinstance(value, str) and not isinstance(value, Markup) else value


def _policy(templates: Environment) -> str:
    """The page's Content-Security-Policy: its own scripts alone run, whatever it shows, and it sends no requests."""
    assert templates.loader is not None
    source = templates.loader.get_source(templates, _PAGE)[0]
    scripts = [hashlib.sha256(script.encode()) for script in re.findall(r"<script>(.*?)</script>", source, re.S)]
    hashes = " ".join(f"'sha256-{base64.b64encode(script.digest()).decode()}'" for script in scripts)
    return f"default-src 'none'; img-src data:; style-src 'unsafe-inline'; script-src {hashes}; base-uri 'none'"


def _percent(share: float) -> str:
    """A share in per cent, without decimals unless it would then read as 0 or 100 and is neither."""
    return f"{share:.1%}" if 0 < share < 0.05 or 0.995 < share < 1 else f"{share:.0%}"


def _clock(time: str) -> str:
    """A time of run.json (ISO 8601, UTC), to the minute."""
    return f"{str(time)[:16].replace('T', ' ')} UTC"


def _context(run: Run, findings: Findings | None, store: str) -> dict[str, Any]:
    sweep, mitigation = run.sweep, run.mitigation
    entries = findings.entries if findings else ()
    limit = _limit([*((c.source, c.target, c.value) for c in entries), *_entries(mitigation)])
    fingerprint = run.run_json["fingerprint"]
    misread, two = read_misreading(run.path), read_two_vlms(run.path)

    def examples() -> ExampleImages:  # one for each section, so that neither uses up the other's share of the page
        return ExampleImages(store, run.models, fingerprint["seed"])

    of_sweep = sweep_section(sweep, findings, fingerprint, examples(), limit) if sweep and findings else {"lost": []}
    settings = {name: _settings(part.about) for name, part in (("sweep", sweep), ("mitigate", mitigation)) if part}
    of_mitigation = mitigation_section(mitigation, examples(), limit) if mitigation else None
    return of_sweep | {
        "name": str(run.config.get("name", run.path.name)),
        "config": run.config,
        "simulated": _simulated(run.config),
        "run": run.run_json,
        "sweep": sweep is not None,
        "mitigation": of_mitigation,
        "two_vlms": two_vlms_section(two, examples()) if sweep and two else None,
        "misreading": misreading_section(misread, sweep.matrix) if sweep and misread else None,
        "others_too": run.run_json.get("command") not in (None, *(settings if len(settings) == 1 else ())),
        "every_settings": settings,
        "settings": next(iter(settings.values())),
        "all_models": _names(of_sweep.get("models", []), of_mitigation.models if of_mitigation else []),
        "all_subjects": _names(of_sweep.get("subjects", []), of_mitigation.subjects if of_mitigation else []),
        "all_axes": _names(of_sweep.get("axes", []), mitigation.cases[0].axes if mitigation else []),
        "failures": run.failures.to_dict("records"),
        "listed": _LISTED,
        "colour_bar": Markup(colour_bar(limit)),
    }


def _simulated(config: Mapping[str, Any]) -> list[str]:
    """The models and VLMs of a config whose engine is the simulated one, so that what they show is made up."""
    models, vlms = config.get("models"), config.get("vqa")
    listed = [*(models if isinstance(models, list) else []), *(vlms if isinstance(vlms, list) else [vlms])]
    return [str(each.get("name")) for each in listed if isinstance(each, dict) and each.get("engine") == "simulated"]


def _names(*some: Iterable[str]) -> list[str]:
    return list(dict.fromkeys(name for names in some for name in names))


def _entries(mitigation: MitigationTables | None) -> list[tuple[str, str, float]]:
    """Every entry of the matrices that mitigations saw: (source, target, IS)."""
    matrices = [m for steps in mitigation.matrices.values() for m in steps.values()] if mitigation else []
    return [
        (source, target, float(value))
        for m in matrices
        for source, row in zip(m.candidates, m.sensitivity, strict=True)
        for target, value in zip(m.axes, row, strict=True)
    ]


def _limit(entries: Iterable[tuple[str, str, float]]) -> float:
    """The |IS| at which colours are full: the largest off the diagonal (if none, of all), rounded up to 0.1."""
    defined = [entry for entry in entries if not math.isnan(entry[2])]
    off = [entry for entry in defined if entry[0] != entry[1]]
    largest = max((abs(value) for *_, value in off or defined), default=0.0)
    return max(0.2, math.ceil(round(10 * largest, 6)) / 10)


def _settings(about: Mapping[str, Any]) -> dict[str, Any]:
    """Metric, targets and intervention in a short form: targets only where they are not uniform."""
    metric: Mapping[str, str] = about.get("metric", {})
    targets: Mapping[str, Mapping[str, float]] = about.get("targets", {})
    return {
        "metric": sorted(set(metric.values())),
        "metric_by_axis": metric if len(set(metric.values())) > 1 else {},
        "intervention": about.get("intervention", ""),
        "dataset": about.get("dataset", ""),
        "targets": {axis: t for axis, t in targets.items() if max(t.values()) - min(t.values()) > 1e-9},
    }
