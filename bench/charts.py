# SPDX-License-Identifier: Apache-2.0
"""Charts as SVG, for docs/figures: small multiples of lines, horizontal bars, and text of a terminal. Without dependencies.

The pictures have no background and take the colors of a light or a dark page from `prefers-color-scheme`.
"""
import html
import math

# Colors that differ for most kinds of color vision, for light and for dark pages.
LIGHT = ("#0b62a4", "#c4510a", "#1a7f4b", "#8a3ffc", "#6b7280", "#b3124f")
DARK = ("#6cb6ff", "#ff9e64", "#63d297", "#c4a1ff", "#a3adba", "#ff82b2")
FONT = "font-family:system-ui,-apple-system,'Segoe UI',Roboto,'DejaVu Sans',sans-serif"


def _style():
    def colors(palette, text, faint):
        return f"svg{{color:{text}}}.grid{{stroke:{faint}}}" + "".join(
            f".s{number}{{color:{color}}}" for number, color in enumerate(palette))
    return (f"<style>text{{fill:currentColor;{FONT};font-size:12px}}.title{{font-weight:600;font-size:13px}}"
            ".faint{opacity:.75}.line{fill:none;stroke:currentColor;stroke-width:1.8}.bar{fill:currentColor}"
            f"{colors(LIGHT, '#24292f', '#d0d7de')}"
            f"@media(prefers-color-scheme:dark){{{colors(DARK, '#e6edf3', '#3d444d')}}}</style>")


def _svg(width, height, title, parts):
    return (f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" '
            f'height="{height}" role="img"><title>{html.escape(title)}</title>{_style()}' + "\n".join(parts) +
            "</svg>\n")


def _text(x, y, text, anchor="start", kind=""):
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" class="{kind}">{html.escape(text)}</text>'


def _ticks(low, high, count):
    """Round numbers between low and high, about `count` of them."""
    step = 10 ** math.floor(math.log10((high - low) / count))
    step *= min((1, 2, 5, 10), key=lambda each: abs((high - low) / (step * each) - count))
    first = math.ceil(low / step - 1e-9)
    return [number * step for number in range(first, math.floor(high / step + 1e-9) + 1)]


def lines(title, panels, columns, x_label, y_label, dashes=()):
    """panels: [(title, {series: [(x, y)]})], in rows of `columns`, with equal axes. Series have the same color in all
    panels; those in `dashes` are dashed."""
    names = list(dict.fromkeys(name for _, series in panels for name in series))
    points = [point for _, series in panels for each in series.values() for point in each]
    x0, x1 = min(x for x, _ in points), max(x for x, _ in points)
    y0, y1 = min(y for _, y in points), max(y for _, y in points)
    y0, y1 = y0 - 0.04 * (y1 - y0), y1 + 0.04 * (y1 - y0)
    left, top, gap, below, panel_width, panel_height = 46, 62, 16, 26, 226, 170
    rows = math.ceil(len(panels) / columns)
    width = left + columns * (panel_width + gap)
    height = top + rows * (panel_height + below + 26)
    parts = [_text(8, 16, title, kind="title")]
    position = 8.0
    for number, name in enumerate(names):
        dash = ' stroke-dasharray="5 4"' if name in dashes else ""
        parts.append(f'<g class="s{number}"><path class="line" d="M{position:.1f} 35h22"{dash}/></g>')
        parts.append(_text(position + 27, 39, name))
        position += 27 + 6.7 * len(name) + 18
    for index, (panel, series) in enumerate(panels):
        column, row = index % columns, index // columns
        x_of = left + column * (panel_width + gap)
        y_of = top + row * (panel_height + below + 26)

        def place(x, y):
            return (x_of + (x - x0) / (x1 - x0) * panel_width, y_of + 14 + (y1 - y) / (y1 - y0) * panel_height)

        parts.append(_text(x_of, y_of + 6, panel, kind="title"))
        for tick in _ticks(y0, y1, 4):
            y = place(x0, tick)[1]
            parts.append(f'<path class="grid" d="M{x_of} {y:.1f}h{panel_width}"/>')
            if column == 0:
                parts.append(_text(x_of - 6, y + 4, f"{tick:g}", "end", "faint"))
        for tick in _ticks(x0, x1, 4):
            parts.append(_text(place(tick, y0)[0], y_of + panel_height + 30, f"{tick:g}", "middle", "faint"))
        for name, each in series.items():
            dash = ' stroke-dasharray="5 4"' if name in dashes else ""
            path = "L".join("{:.1f} {:.1f}".format(*place(x, y)) for x, y in each)
            parts.append(f'<g class="s{names.index(name)}"><path class="line" d="M{path}"{dash}/></g>')
    parts.append(_text(left + panel_width, height - 4, x_label, "end", "faint"))
    parts.append(_text(8, top - 8, y_label, kind="faint"))
    return _svg(width, height, title, parts)


def bars(title, groups, unit, order=None, top=None):
    """groups: [(title, {bar: value})], each with its own scale if its unit differs: a title may be
    (title, unit). top: value of a full bar; default: the largest of each group."""
    names = order or list(dict.fromkeys(name for _, values in groups for name in values))
    left, width, line = 12 + int(6.9 * max(len(name) for name in names)), 720, 20
    parts, y = [_text(8, 16, title, kind="title")], 34
    for group, values in groups:
        name_of_group, unit_of_group = group if isinstance(group, tuple) else (group, unit)
        largest = top or max(values.values())
        parts.append(_text(8, y + 8, name_of_group, kind="title"))
        y += 16
        for name, value in values.items():
            length = value / largest * (width - left - 110)
            parts.append(_text(left - 8, y + 13, name, "end"))
            parts.append(f'<g class="s{names.index(name) % len(LIGHT)}"><rect class="bar" x="{left}" y="{y + 3}" '
                         f'width="{max(length, 1):.1f}" height="{line - 6}" rx="2"/></g>')
            parts.append(_text(left + length + 6, y + 13, f"{value:,g} {unit_of_group}".strip()))
            y += line
        y += 12
    return _svg(width, y, title, parts)


def terminal(title, command, lines):
    """The text that a command printed in a terminal."""
    size, advance, height, margin = 12, 7.25, 17, 14
    shown = [f"$ {command}", *lines]
    width = round(2 * margin + advance * max(map(len, shown)))
    parts = [f'<rect width="{width}" height="{2 * margin + height * len(shown)}" rx="6" fill="#161b22"/>']
    for number, line in enumerate(shown):
        parts.append(f'<text x="{margin}" y="{margin + height * number + size}" xml:space="preserve" '
                     f'textLength="{advance * len(line):.1f}" style="font-family:\'DejaVu Sans Mono\',Menlo,Consolas,monospace;'
                     f'font-size:{size}px;fill:{"#7ee787" if number == 0 else "#e6edf3"}">{html.escape(line)}</text>'
                     if line else "")
    return _svg(width, 2 * margin + height * len(shown), title, parts)
