"""Parses HTML pages."""

import html.parser


class Page(html.parser.HTMLParser):
    """A parsed page: elements, text, and rows of tables by first cell."""

    VOID = ("meta", "img")

    def __init__(self, text):
        super().__init__()
        self.elements, self.open, self.rows = [], [], {}
        self.text = ""
        self.feed(text)
        self.close()
        assert not self.open, f"not closed: {self.open}"

    def handle_starttag(self, tag, attributes):
        self.elements.append((tag, dict(attributes)))
        if tag not in self.VOID:
            self.open.append(tag)
        if tag == "tr":
            self.cells = []
        if tag in ("td", "th"):
            self.cells.append("")

    def handle_startendtag(self, tag, attributes):
        self.elements.append((tag, dict(attributes)))

    def handle_endtag(self, tag):
        assert self.open.pop() == tag
        if tag == "tr":
            self.rows.setdefault(self.cells[0], []).append(self.cells[1:])

    def handle_data(self, data):
        self.text += data
        if "tr" in self.open and self.open[-1] in ("td", "th"):
            self.cells[-1] += data

    def all(self, tag):
        return [attributes for name, attributes in self.elements if name == tag]
