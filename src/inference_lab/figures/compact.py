"""The same picture in half the bytes: what matplotlib repeats for every sample and letter is written once.

Places are in hundredths of a point. A series of markers is one path through the places of its samples, in
the order drawn.
"""

import re

# Markers of one look in a row: name, style. A single one stays as it is: a path of one place has two ends.
_MARKERS = re.compile(
    r'<use xlink:href="#(\w+)" x="[^"]*" y="[^"]*" style="([^"]*)"/>\n'
    r'(?:<use xlink:href="#\1" x="[^"]*" y="[^"]*" style="\2"/>\n)+'
)
_PLACE = re.compile(r'x="([^"]*)" y="([^"]*)"')


def compact(svg: str) -> str:
    """Return what matplotlib wrote with short numbers and names, without groups that hold an id alone."""
    svg = re.sub(r' d="([^"]*)"', lambda path: f' d="{_short(path[1])}"', _without_ids(svg))
    svg = re.sub(r'(?<= )([xy]|transform)="([^"]*)"', lambda place: f'{place[1]}="{_short(place[2])}"', svg)
    svg = re.sub(r'transform="translate\(([-0-9.]+) 0\)"/>', r'x="\1"/>', svg)  # of the letters of a word
    svg = re.sub(r'style="[^"]*"', lambda style: re.sub("([:;]) ", r"\1", style[0]), svg)
    looks: dict[tuple[str, ...], str] = {}

    def series(markers: re.Match[str]) -> str:
        look = looks.setdefault((markers[1], markers[2]), f"marker-{len(looks)}")
        path = "L".join(f"{x} {y}" for x, y in _PLACE.findall(markers[0]))
        return f'<path d="M{path}" style="fill:none;marker:url(#{look})"/>\n'

    svg = _MARKERS.sub(series, svg)
    shapes = dict(re.findall('<path id="([^"]*)" d="([^"]*)"', svg))
    for (shape, style), look in looks.items():
        size = 'viewBox="-9 -9 18 18" markerWidth="18" markerHeight="18" markerUnits="userSpaceOnUse"'
        marker = f'<marker id="{look}" {size}><path d="{shapes[shape]}" style="{style}"/></marker>'
        svg = svg.replace("</svg>", f"<defs>{marker}</defs>\n</svg>")
    names: dict[str, str] = {}
    return re.sub(
        r'( id="|xlink:href="#|url\(#)([\w-]+)',
        lambda used: used[1].replace("xlink:", "") + names.setdefault(used[2], f"_{len(names):x}"),
        svg,
    )


def _short(numbers: str) -> str:
    if "scale(0.015625)" in numbers:  # of a letter
        return numbers
    numbers = re.sub(r"-?\d+\.\d+", lambda number: f"{float(number[0]):.2f}".rstrip("0").rstrip("."), numbers)
    return re.sub(r"\s*\b([A-Zz])\s*", r"\1", numbers).strip()


def _without_ids(svg: str) -> str:
    lines: list[str] = []
    is_kept: list[bool] = []  # of each open group
    for line in map(str.strip, svg.split("\n")):
        is_bare = re.fullmatch('<g( id="[^"]*")?/?>', line)
        if re.match("<g[ >]", line) and not line.endswith("/>"):
            is_kept.append(not is_bare)
        if not is_bare and (line != "</g>" or is_kept.pop()):
            lines.append(re.sub('^<g id="[^"]*"', "<g", line))
    return "\n".join(lines)
