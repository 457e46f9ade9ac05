"""What the toy draws with."""

from xml.sax.saxutils import escape


def svg(source: str, lines: list[str]) -> str:
    """An SVG of lines of text that names its origin."""
    text = "".join(f"<text>{escape(line)}</text>" for line in lines)
    head = '<svg xmlns="http://www.w3.org/2000/svg" xmlns:dc="http://purl.org/dc/elements/1.1/">'
    return f"{head}<metadata><dc:source>{escape(source)}</dc:source></metadata>{text}</svg>\n"
