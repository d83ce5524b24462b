"""Draws a line chart as SVG. Equal numbers give equal bytes.

Colours follow the reader's scheme (prefers-color-scheme), so the chart is readable on light and
dark pages, and color-blind readers can distinguish them. Each line has its name at its right end
instead of in a legend.
"""

import dataclasses
import html
import math

WIDTH, HEIGHT = 760, 430
LEFT, RIGHT, TOP, BOTTOM = 62, 168, 58, 52
LABEL_STEP = 16  # minimum distance of two names, in pixels
# Name: colors on light and on dark pages.
COLORS = {
    "page": ("#ffffff", "#14181f"), "ink": ("#1c2430", "#e6e9ee"), "faint": ("#66707f", "#98a2b3"),
    "grid": ("#e3e7ec", "#2b323d"),
    "blue": ("#0b6bb8", "#5db1f5"), "orange": ("#c2540a", "#f59b56"),
    "green": ("#0a7d5a", "#43c796"), "purple": ("#8a3f9e", "#cf8fe0"), "grey": ("#7a828e", "#8d97a6"),
}
DASHES = {"solid": "", "limit": "6 4", "peer": "2 4"}


@dataclasses.dataclass
class Line:
    name: str
    points: list  # [(x, y)]
    color: str
    style: str = "solid"


@dataclasses.dataclass
class Chart:
    title: str
    subtitle: str
    x_label: str
    y_label: str
    lines: list
    x_ticks: list  # values
    y_log: bool = False

    def svg(self):
        self.lines = [line for line in self.lines if line.points]
        self.top_value = nice_top(max(y for line in self.lines for _, y in line.points))
        self.low_value = 10 ** math.floor(math.log10(
            min(y for line in self.lines for _, y in line.points))) if self.y_log else 0
        parts = [head(self.title), text(LEFT, 24, self.title, "title"),
                 text(LEFT, 42, self.subtitle, "note"), *self.axes(),
                 *(part for line in self.lines for part in self.drawn(line)), *self.names()]
        return "\n".join([*parts, "</svg>"]) + "\n"

    # ---- scales: 0, then doublings ----

    def x(self, value):
        low, high = (math.log2(1 + v / 1024) for v in (self.x_ticks[0], self.x_ticks[-1]))
        share = (math.log2(1 + value / 1024) - low) / (high - low)
        return LEFT + share * (WIDTH - LEFT - RIGHT)

    def y(self, value):
        low, high, at = self.low_value, self.top_value, value
        if self.y_log:
            low, high, at = math.log10(low), math.log10(high), math.log10(value)
        return HEIGHT - BOTTOM - (at - low) / (high - low) * (HEIGHT - TOP - BOTTOM)

    def y_ticks(self):
        if not self.y_log:
            step = tick_step(self.top_value)
            return [i * step for i in range(int(self.top_value / step + 0.5) + 1)]
        decades = range(round(math.log10(self.low_value)), math.ceil(math.log10(self.top_value)))
        ticks = [m * 10.0 ** d for d in decades for m in (1, 2, 5)] + [10.0 ** (decades[-1] + 1)]
        return [tick for tick in ticks if tick <= self.top_value * 1.001]

    # ---- parts ----

    def axes(self):
        for tick in self.y_ticks():
            y = self.y(tick)
            yield f'<path class="grid" d="M{LEFT} {y:.1f}H{WIDTH - RIGHT}"/>'
            yield text(LEFT - 8, y + 4, f"{tick:g}", "tick end")
        for tick in self.x_ticks:
            yield f'<path class="grid" d="M{self.x(tick):.1f} {TOP}V{HEIGHT - BOTTOM}"/>'
            yield text(self.x(tick), HEIGHT - BOTTOM + 18, tokens(tick), "tick middle")
        yield text((LEFT + WIDTH - RIGHT) / 2, HEIGHT - 12, self.x_label, "tick middle")
        yield (f'<text class="tick middle" transform="translate(16 {(TOP + HEIGHT - BOTTOM) / 2:.1f})'
               f' rotate(-90)">{html.escape(self.y_label)}</text>')

    def drawn(self, line):
        where = [(self.x(x), self.y(y)) for x, y in line.points]
        path = "L".join(f"{x:.1f} {y:.1f}" for x, y in where)
        dash = f' stroke-dasharray="{DASHES[line.style]}"' if DASHES[line.style] else ""
        yield f'<path class="line s-{line.color}"{dash} d="M{path}"/>'
        if line.style != "limit":
            for (x, y), (tick, value) in zip(where, line.points):
                yield (f'<circle class="f-{line.color}" cx="{x:.1f}" cy="{y:.1f}" r="3">'
                       f"<title>{html.escape(line.name)}, {tokens(tick)}: {value:.3g}</title>"
                       "</circle>")

    def names(self):
        """Yields each line's name: in the margin, or after the end of a line that ends earlier."""
        edge = WIDTH - RIGHT
        for inside in (True, False):
            mine = [line for line in self.lines
                    if (self.x(line.points[-1][0]) < edge - 1) == inside]
            for at, line in apart([(self.y(line.points[-1][1]), line) for line in mine]):
                x, y = self.x(line.points[-1][0]), self.y(line.points[-1][1])
                start = x + 4 if inside else edge + 8
                yield (f'<path class="lead s-{line.color}" d="M{x + 4:.1f} {y:.1f}L{start:.1f} '
                       f'{at:.1f}H{start + 4:.1f}"/>')
                yield text(start + 8, at + 4, line.name, f"name f-{line.color}")


def apart(wanted):
    """Returns [(y, line)], as close to the wanted y as LABEL_STEP allows."""
    placed, at = [], -math.inf
    for y, line in sorted(wanted, key=lambda pair: pair[0]):
        at = max(y, at + LABEL_STEP)
        placed.append((at, line))
    lowest = HEIGHT - BOTTOM
    for i in reversed(range(len(placed))):  # up again from the bottom
        placed[i] = (min(placed[i][0], lowest), placed[i][1])
        lowest = placed[i][0] - LABEL_STEP
    return placed


def head(title):
    def scheme(which):
        out = [".page{fill:%s}" % COLORS["page"][which],
               ".title{fill:%s}" % COLORS["ink"][which],
               ".note,.tick{fill:%s}" % COLORS["faint"][which],
               ".grid{stroke:%s}" % COLORS["grid"][which]]
        for name, pair in COLORS.items():
            if name not in ("page", "ink", "faint", "grid"):
                out += [".f-%s{fill:%s}" % (name, pair[which]),
                        ".s-%s{stroke:%s}" % (name, pair[which])]
        return "".join(out)

    return "\n".join([
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" '
        f'height="{HEIGHT}" role="img" aria-label="{html.escape(title)}">',
        "<style>",
        "text{font-family:system-ui,'Segoe UI',Roboto,'DejaVu Sans',sans-serif;font-size:12px}"
        ".title{font-size:15px;font-weight:600}.name{font-size:12px;font-weight:600}"
        ".end{text-anchor:end}.middle{text-anchor:middle}.grid{fill:none;stroke-width:1}"
        ".line{fill:none;stroke-width:2.2;stroke-linejoin:round}"
        ".lead{fill:none;stroke-width:1;opacity:.45}",
        scheme(0), "@media (prefers-color-scheme:dark){" + scheme(1) + "}", "</style>",
        f'<rect class="page" width="{WIDTH}" height="{HEIGHT}" rx="6"/>'])


def text(x, y, content, kind):
    return f'<text class="{kind}" x="{x:.1f}" y="{y:.1f}">{html.escape(content)}</text>'


def tokens(count):
    return f"{count // 1024}k" if count >= 1024 and count % 1024 == 0 else str(count)


def tick_step(top):
    """Returns a step of 1, 2 or 5 times a power of ten that gives about five ticks."""
    power = 10.0 ** math.floor(math.log10(top / 4))
    return next(m * power for m in (1, 2, 5, 10) if m * power >= top / 6)


def nice_top(highest):
    step = tick_step(highest)
    return step * math.ceil(highest / step)
