"""Boxes, arrows and text as SVG: what the diagrams of the book are made of.

A drawing scales with the page and follows the reader's light or dark scheme. Coordinates are in units of the
drawing; 14 units are a line of body text in a page 900 units wide.
"""

from xml.sax.saxutils import escape

LIGHT = {"page": "#ffffff", "ink": "#1f2328", "faint": "#59636e", "rule": "#8c959f"}
DARK = {"page": "#0d1117", "ink": "#e6edf3", "faint": "#9198a1", "rule": "#6e7681"}
# Fill and stroke of each kind of box, light and dark.
KINDS = {
    "io": (("#dbeafe", "#1d5fa8"), ("#12263f", "#4ba3dd")),
    "svc": (("#d8f3e6", "#00795a"), ("#0e2f26", "#2fc79b")),
    "batch": (("#fde5d3", "#b8520b"), ("#3a2414", "#f0803c")),
    "mem": (("#f0e7f7", "#7a4a9a"), ("#2a1f36", "#c39be0")),
    "plain": (("#f6f8fa", "#8c959f"), ("#161b22", "#6e7681")),
}


def _rules(scheme, index):
    rules = [
        f".page{{fill:{scheme['page']}}}text{{fill:{scheme['ink']}}}.faint{{fill:{scheme['faint']}}}",
        f".edge{{stroke:{scheme['ink']};fill:none}}.head{{fill:{scheme['ink']}}}",
        f".thin{{stroke:{scheme['rule']}}}",
    ]
    for kind, pair in KINDS.items():
        fill, stroke = pair[index]
        rules.append(f".{kind}{{fill:{fill};stroke:{stroke}}}.t-{kind}{{fill:{stroke}}}.e-{kind}{{stroke:{stroke};fill:none}}")
        rules.append(f".h-{kind}{{fill:{stroke}}}")
    return "".join(rules)


class Drawing:
    """A drawing under way: elements are appended in the order in which they are painted."""

    def __init__(self, width, height, title):
        self.width, self.height, self.title = width, height, title
        self.parts = []

    def box(self, x, y, w, h, kind="plain", lines=(), size=14, bold_first=False, radius=5):
        """A rectangle with lines of text centred in it."""
        self.parts.append(
            f'<rect class="{kind}" x="{x}" y="{y}" width="{w}" height="{h}" rx="{radius}" stroke-width="1.5"/>'
        )
        lines = [lines] if isinstance(lines, str) else list(lines)
        top = y + h / 2 - (len(lines) - 1) * size * 0.62 + size * 0.35
        for i, line in enumerate(lines):
            self.text(x + w / 2, top + i * size * 1.24, line, size=size, bold=bold_first and i == 0)

    def text(self, x, y, text, size=14, anchor="middle", kind="", bold=False, mono=False):
        """One line of text."""
        classes = " ".join(filter(None, [kind and (kind if kind == "faint" else f"t-{kind}"), "b" if bold else "", "m" if mono else ""]))
        attribute = f' class="{classes}"' if classes else ""
        self.parts.append(
            f'<text{attribute} x="{x:g}" y="{y:g}" font-size="{size}" text-anchor="{anchor}">{escape(text)}</text>'
        )

    def line(self, points, kind="edge", dashed=False, width=1.5):
        """A line through points."""
        css = kind if kind in ("edge", "thin") else f"e-{kind}"
        dashes = ' stroke-dasharray="5 4"' if dashed else ""
        path = " ".join(f"{x:g},{y:g}" for x, y in points)
        self.parts.append(f'<polyline class="{css}" fill="none" stroke-width="{width}"{dashes} points="{path}"/>')

    def arrow(self, points, kind="edge", dashed=False, both=False):
        """A line through points with a head at its end, or at both ends."""
        self.line(points, kind, dashed)
        ends = [(points[-2], points[-1])] + ([(points[1], points[0])] if both else [])
        for (x0, y0), (x1, y1) in ends:
            length = max(((x1 - x0) ** 2 + (y1 - y0) ** 2) ** 0.5, 1e-9)
            dx, dy = (x1 - x0) / length, (y1 - y0) / length
            left = (x1 - 9 * dx - 4 * dy, y1 - 9 * dy + 4 * dx)
            right = (x1 - 9 * dx + 4 * dy, y1 - 9 * dy - 4 * dx)
            css = "head" if kind in ("edge", "thin") else f"h-{kind}"
            corners = " ".join(f"{x:.1f},{y:.1f}" for x, y in [(x1, y1), left, right])
            self.parts.append(f'<polygon class="{css}" points="{corners}"/>')

    def dot(self, x, y, kind="edge"):
        """A point on a line."""
        css = "head" if kind == "edge" else f"h-{kind}"
        self.parts.append(f'<circle class="{css}" cx="{x:g}" cy="{y:g}" r="4"/>')

    def finish(self):
        """The text of the file."""
        style = (
            "svg{max-width:100%;height:auto;font-family:system-ui,'DejaVu Sans',Helvetica,Arial,sans-serif}"
            ".b{font-weight:600}.m{font-family:ui-monospace,'DejaVu Sans Mono',monospace}"
            f"{_rules(LIGHT, 0)}@media (prefers-color-scheme:dark){{{_rules(DARK, 1)}}}"
        )
        head = (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {self.width} {self.height}" width="{self.width}" '
            f'height="{self.height}" role="img" aria-label="{escape(self.title)}">\n<style>{style}</style>\n'
            f'<rect class="page" width="{self.width}" height="{self.height}"/>\n'
        )
        return head + "\n".join(self.parts) + "\n</svg>\n"
