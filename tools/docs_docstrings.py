"""How docstrings are read for the site. An extension of griffe, which mkdocstrings uses."""

import re
from typing import Any

import griffe


class DocstringDialect(griffe.Extension):
    """``Example:`` is the section that griffe calls ``Examples:``, and ``docs/NAME.md`` is a link."""

    def on_object(self, *, obj: griffe.Object, **kwargs: Any) -> None:
        if obj.docstring is not None:
            text = re.sub(r"^(\s*)Example:$", r"\1Examples:", obj.docstring.value, flags=re.MULTILINE)
            obj.docstring.value = re.sub(r"(?<![\w`/])docs/(\w+)\.md", r"[docs/\1.md](../\1.md)", text)
