"""Draw docs/architecture.svg: the folders of the package in the order of their layers, and who imports whom.

uv run python -m tests.tools.architecture
"""

import ast
import re
import tomllib
from pathlib import Path
from xml.sax.saxutils import escape

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "src/inference_lab"
PICTURE = ROOT / "docs/architecture.svg"
ROW, BOX_WIDTH, BOX_HEIGHT, LEFT, TOP = 46, 132, 28, 12, 12
PALETTE = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#7a6a00", "#56b4e9", "#444444")
TEXT_LEFT = LEFT + BOX_WIDTH + 190  # the arcs lie between the boxes and their texts


def layers() -> list[str]:
    """Return the parts of the package from the top layer down, as the contract of pyproject.toml has them."""
    options = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["importlinter"]
    contract = options["contracts"][0]["layers"]
    return [part.strip() for layer in contract for part in re.split(r"[|:]", layer)]


def imports(part: str) -> set[str]:
    """Return the other parts that a part of the package imports, also inside functions."""
    path = PACKAGE / part
    files = path.rglob("*.py") if path.is_dir() else [path.with_suffix(".py")]
    names: set[str] = set()
    for file in files:
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("inference_lab"):
                inside = node.module.removeprefix("inference_lab").strip(".")
                names |= {inside.split(".")[0]} if inside else {alias.name for alias in node.names}
            elif isinstance(node, ast.Import):
                names |= {n.name.split(".")[1] for n in node.names if n.name.startswith("inference_lab.")}
    return names - {part}


def described() -> dict[str, str]:
    """Return what the README's file tree says of each part."""
    tree = (ROOT / "README.md").read_text(encoding="utf-8")
    return dict(re.findall(r"^ {6}([a-z_]+)(?:/|\.py) +(.+)$", tree, re.MULTILINE))


def picture() -> str:
    """Return the picture as SVG: a box per part, an arc for each import. Arcs to `errors` are left out."""
    parts, words = layers(), described()
    middle = {part: TOP + BOX_HEIGHT / 2 + ROW * row for row, part in enumerate(parts)}
    height, width = TOP * 2 + ROW * (len(parts) - 1) + BOX_HEIGHT, 1010
    right = LEFT + BOX_WIDTH
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" '
        f'height="{height}" font-family="sans-serif" font-size="13">',
        '<marker id="head" viewBox="0 0 8 8" refX="8" refY="4" markerWidth="7" '
        'markerHeight="7" orient="auto">'
        '<path d="M0 0 8 4 0 8z" fill="#555"/></marker>',
        f'<rect width="{width}" height="{height}" fill="#fff"/>',
    ]
    for part in parts:
        y = middle[part] - BOX_HEIGHT / 2
        lines += [
            f'<rect x="{LEFT}" y="{y:g}" width="{BOX_WIDTH}" height="{BOX_HEIGHT}" rx="4" fill="#eef3f8" '
            'stroke="#345"/>',
            f'<text x="{LEFT + BOX_WIDTH / 2:g}" y="{y + 19:g}" text-anchor="middle">{part}</text>',
            f'<text x="{TEXT_LEFT}" y="{y + 19:g}" fill="#333">{escape(words.get(part, ""))}</text>',
        ]
        below = sorted(imports(part) - {"errors"}, key=parts.index)
        color = PALETTE[parts.index(part) % len(PALETTE)]
        for place, other in enumerate(below):
            leaves = middle[part] + (place + 1) * BOX_HEIGHT / (len(below) + 1) - BOX_HEIGHT / 2
            reaches = middle[other] - BOX_HEIGHT / 3 + BOX_HEIGHT * 2 / 3 * parts.index(part) / len(parts)
            bulge = right + 22 + 20 * (parts.index(other) - parts.index(part))
            lines.append(
                f'<path d="M{right} {leaves:.1f}C{bulge} {leaves:.1f} {bulge} {reaches:.1f} {right} '
                f'{reaches:.1f}" fill="none" stroke="{color}" stroke-width="1.3" marker-end="url(#head)"/>'
            )
    return "\n".join([*lines, "</svg>", ""])


if __name__ == "__main__":
    PICTURE.write_text(picture(), encoding="utf-8")
