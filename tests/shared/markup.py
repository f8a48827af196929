"""Text of elements of pages."""

from xml.etree import ElementTree as ET


def text_of(element: ET.Element) -> str:
    """Return the text of an element and of those in it, with single spaces."""
    return " ".join("".join(element.itertext()).split())
