"""What `make docs` adds to the docstrings of the Python interface."""

import griffe


class Examples(griffe.Extension):
    """Renders the section Example as code, as if it were called Examples."""

    def on_object(self, *, obj: griffe.Object, **_: object) -> None:
        if obj.docstring:
            text = obj.docstring.value
            obj.docstring.value = text.replace("Example:\n", "Examples:\n")
