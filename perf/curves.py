"""Draws curves over sizes as one SVG: a grid of panels, each with a line per target. Sizes are steps of equal width, because they grow by
factors; values begin at 0."""

from __future__ import annotations

from dataclasses import dataclass
from html import escape

# Of the picture, in pixels.
WIDTH, HEIGHT, LEFT, TOP, BOTTOM, RIGHT, HEAD, FOOT, PAD = 430, 190, 56, 34, 30, 18, 34, 40, 12
COLUMNS = 2
TICKS = 4
STYLE = """
text{font-family:system-ui,sans-serif;font-size:12px;fill:#1f2937}
.page{fill:#fff}.small{font-size:10.5px}.soft{fill:#64748b}.grid{stroke:#e2e8f0}.line{fill:none;stroke-width:2}
.c0{stroke:#2563eb;fill:#2563eb}.c1{stroke:#d97706;fill:#d97706}.c2{stroke:#059669;fill:#059669}.line{fill:none}
@media (prefers-color-scheme:dark){text{fill:#e5e7eb}.page{fill:#0f172a}.soft{fill:#94a3b8}.grid{stroke:#334155}}
"""


@dataclass(frozen=True)
class Panel:
    """Curves over the same sizes, by target. A value is None where nothing was measured."""

    heading: str
    sizes: list[int]
    curves: dict[str, list[float | None]]


def svg(title: str, panels: list[Panel], targets: list[str], foot: str) -> str:
    rows = -(-len(panels) // COLUMNS)
    width, height = COLUMNS * WIDTH + 2 * PAD, HEAD + rows * HEIGHT + FOOT
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" role="img">',
        f"<title>{escape(title)}</title><style>{STYLE}</style>",
        f'<rect class="page" width="{width}" height="{height}"/>',
    ]
    for number, name in enumerate(targets):
        left = PAD + LEFT + 130 * number
        parts.append(f'<line class="line c{number}" x1="{left}" x2="{left + 24}" y1="18" y2="18"/>')
        parts.append(f'<text x="{left + 30}" y="22">{escape(name)}</text>')
    for number, panel in enumerate(panels):
        left, top = PAD + number % COLUMNS * WIDTH, HEAD + number // COLUMNS * HEIGHT
        parts.append(f'<g transform="translate({left} {top})">{"".join(drawn(panel, targets))}</g>')
    parts.append(f'<text class="small soft" x="{PAD}" y="{height - 14}">{escape(foot)}</text>')
    return "\n".join([*parts, "</svg>"]) + "\n"


def drawn(panel: Panel, targets: list[str]) -> list[str]:
    values = [value for curve in panel.curves.values() for value in curve if value is not None]
    step = nice_step(max(values, default=1.0) / TICKS)
    top_value = step * TICKS
    inner_width, inner_height = WIDTH - LEFT - RIGHT, HEIGHT - TOP - BOTTOM
    across = lambda place: LEFT + inner_width * (place / max(1, len(panel.sizes) - 1))  # noqa: E731
    down = lambda value: TOP + inner_height * (1 - value / top_value)  # noqa: E731
    parts = [f'<text x="{LEFT}" y="{TOP - 14}">{escape(panel.heading)}</text>']
    for tick in range(TICKS + 1):
        y = down(tick * step)
        parts.append(f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>')
        parts.append(f'<text class="small soft" x="{LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{tick * step:,.10g}</text>')
    for place, size in enumerate(panel.sizes):
        parts.append(f'<text class="small soft" x="{across(place):.1f}" y="{HEIGHT - BOTTOM + 16}" text-anchor="middle">{size:,}</text>')
    for number, name in enumerate(targets):
        points = [(across(place), down(value), value) for place, value in enumerate(panel.curves.get(name, [])) if value is not None]
        if not points:
            continue
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y, _ in points)
        parts.append(f'<polyline class="line c{number}" points="{path}"/>')
        parts += [
            f'<circle class="c{number}" cx="{x:.1f}" cy="{y:.1f}" r="3"><title>{escape(name)}: {value:,.4g}</title></circle>'
            for x, y, value in points
        ]
    return parts


def nice_step(least: float) -> float:
    """The least of 1, 2, 2.5, 5 times a power of ten that is not less."""
    power = 1.0
    while power > least:
        power /= 10
    while power * 10 <= least:
        power *= 10
    return next(power * factor for factor in (1, 2, 2.5, 5, 10) if power * factor >= least)
