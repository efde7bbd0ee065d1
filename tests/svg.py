"""Reading pictures: the markup parsed as XML, its hover texts, its visible texts."""

import xml.etree.ElementTree as ET

NAMESPACE = "{http://www.w3.org/2000/svg}"
# What the pages of notebooks drop, and what could run or load something.
FORBIDDEN_ATTRIBUTES = {"id", "class", "style", "href"}


def parse(markup: str) -> ET.Element:
    """The root element; fails for anything that is no well-formed SVG of presentation attributes alone."""
    root = ET.fromstring(markup)
    assert root.tag == f"{NAMESPACE}svg"
    for element in root.iter():
        assert element.tag.removeprefix(NAMESPACE) in {"svg", "g", "title", "rect", "text", "path", "circle"}
        assert not FORBIDDEN_ATTRIBUTES & set(element.attrib)
        assert not any(name.startswith("on") for name in element.attrib)
    return root


def titles(markup: str) -> list[str]:
    """The hover texts, in order."""
    return [element.text or "" for element in parse(markup).iter(f"{NAMESPACE}title")]


def texts(markup: str) -> list[str]:
    """The texts that are seen, in order."""
    return [element.text or "" for element in parse(markup).iter(f"{NAMESPACE}text")]


def fills(markup: str) -> list[str]:
    """The colours of all rectangles, in order."""
    return [rect.attrib["fill"] for rect in parse(markup).iter(f"{NAMESPACE}rect") if "fill" in rect.attrib]
