"""How docstrings are read for the site. An extension of griffe, which mkdocstrings uses."""

import re
from pathlib import Path
from typing import Any

import griffe

RECORDS = ("dataclass", "settings_table")  # decorators of classes that are mostly their fields


class DocstringDialect(griffe.Extension):
    """``Example:`` is the section that griffe calls ``Examples:``, ``docs/NAME.md`` is a link, and fields are shown."""

    def on_object(self, *, obj: griffe.Object, **kwargs: Any) -> None:
        if obj.docstring is not None:
            text = re.sub(r"^(\s*)Example:$", r"\1Examples:", obj.docstring.value, flags=re.MULTILINE)
            obj.docstring.value = re.sub(r"(?<![\w`/])docs/(\w+)\.md", r"[docs/\1.md](../\1.md)", text)

    def on_class_members(self, *, cls: griffe.Class, **kwargs: Any) -> None:
        """After the text of a record, its public fields as they stand in the file, with their comments."""
        if cls.docstring is None or not any(name in str(d.value) for d in cls.decorators for name in RECORDS):
            return
        assert isinstance(cls.filepath, Path)
        lines = cls.lines_collection[cls.filepath]
        fields = [
            "\n".join(line.removeprefix("    ") for line in lines[(m.lineno or 1) - 1 : m.endlineno])
            for name, m in cls.members.items()
            if isinstance(m, griffe.Attribute) and m.annotation is not None
            if "property" not in m.labels and not name.startswith("_")
        ]
        if fields:
            text, found, sections = cls.docstring.value.partition("\n\nExamples:\n")
            cls.docstring.value = f"{text}\n\n```python\n" + "\n".join(fields) + f"\n```{found}{sections}"
