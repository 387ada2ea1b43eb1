"""Labels as files of other tools: Parquet as Hugging Face's datasets read it, and COCO's JSON of classified images.

What goes out and comes in are names of items and of classes; exchange.py chooses the format and matches the names.
"""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

PARQUET_ROWS = 500  # of a row group: pictures are in memory so many at a time


def write_parquet(
    path: Path,
    rows: Sequence[Mapping[str, str]],
    classes: Sequence[str],
    content: tuple[str, Callable[[str], Any]] | None = None,
) -> None:
    """Write rows with "item", "label" and other columns of text; labels are numbers whose names are in the file.

    ``content``: "image" or "text", and what gives an item's bytes or words; datasets.Image decodes the first.
    """
    try:
        import pyarrow as pa
        from pyarrow.parquet import ParquetWriter
    except ImportError:
        raise ImportError(
            f"{path}: writing Parquet needs the package pyarrow: pip install 'foretaste[parquet]', or name a .csv"
        ) from None
    texts = [name for name in (rows[0] if rows else {"item": ""}) if name != "label"]
    columns = [(name, pa.string()) for name in texts] + [("label", pa.int64())]
    features: dict[str, Any] = {name: {"dtype": "string", "_type": "Value"} for name in texts}
    features["label"] = {"names": list(classes), "_type": "ClassLabel"}
    if content is not None:
        picture = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
        columns.append((content[0], picture if content[0] == "image" else pa.string()))
        features[content[0]] = {"_type": "Image"} if content[0] == "image" else {"dtype": "string", "_type": "Value"}
    schema = pa.schema(columns, metadata={"huggingface": json.dumps({"info": {"features": features}})})
    number = {name: k for k, name in enumerate(classes)}
    with ParquetWriter(path, schema) as file:
        for start in range(0, len(rows), PARQUET_ROWS):
            some: list[dict[str, Any]] = [
                {**r, "label": number[r["label"]]} for r in rows[start : start + PARQUET_ROWS]
            ]
            if content is not None:
                for row in some:
                    held = content[1](row["item"])
                    row[content[0]] = {"bytes": held, "path": row["item"]} if content[0] == "image" else held
            file.write_table(pa.Table.from_pylist(some, schema))


def read_parquet(path: Path, item_columns: Sequence[str]) -> Iterator[dict[str, Any]]:
    """Rows of a Parquet file with an item and a label; an item may be the path of a picture."""
    try:
        from pyarrow import ArrowException
        from pyarrow.parquet import ParquetFile
    except ImportError:
        raise ImportError(
            f"{path}: reading Parquet needs the package pyarrow: pip install 'foretaste[parquet]'"
        ) from None
    try:
        with path.open("rb") as raw:
            file = ParquetFile(raw)
            columns = file.schema_arrow.names
            item = next((c for c in item_columns if c in columns), None)
            if item is None or "label" not in columns:
                raise ValueError(
                    f"{path} has the columns {', '.join(columns)}; expected label and one of {', '.join(item_columns)}"
                )
            said = json.loads((file.schema_arrow.metadata or {}).get(b"huggingface", b"{}"))
            names = said.get("info", {}).get("features", {}).get("label", {}).get("names")
            wanted = [c for c in ("label", "kind", "who", "at", "purpose") if c in columns]
            picture = f"{item}.path" if str(file.schema_arrow.field(item).type).startswith("struct") else item
            for batch in file.iter_batches(columns=[*wanted, picture]):
                for row in batch.to_pylist():
                    if isinstance(row[item], dict):
                        row[item] = row[item].get("path")
                    if names is not None and isinstance(at := row["label"], int):
                        row["label"] = names[at] if 0 <= at < len(names) else None
                    if row["label"] is not None or row.get("kind"):
                        yield {"item": row[item], **{c: row[c] for c in wanted}}
    except (ArrowException, OSError, UnicodeDecodeError, json.JSONDecodeError, AttributeError) as error:
        raise ValueError(f"{path} cannot be read as Parquet: {' '.join(str(error).split())[:300]}") from None


def coco_text(rows: Sequence[tuple[str, Sequence[str]]], classes: Sequence[str]) -> str:
    """(item, classes) as COCO has it: an annotation without a box for each class, categories counted from 1."""
    number = {name: k for k, name in enumerate(classes, 1)}
    pairs = [(k, number[c]) for k, (_, names) in enumerate(rows, 1) for c in names]
    found = {
        "images": [{"id": k, "file_name": item} for k, (item, _) in enumerate(rows, 1)],
        "annotations": [{"id": n, "image_id": k, "category_id": c} for n, (k, c) in enumerate(pairs, 1)],
        "categories": [{"id": k, "name": name} for name, k in number.items()],
    }
    return json.dumps(found, ensure_ascii=False, indent=1) + "\n"


def read_coco(path: Path, said: Mapping[str, Any], several: bool = False) -> Iterator[tuple[str, list[str]]]:
    """(item, classes) of each image that has an annotation, of which two classes raise.

    ``several``: of all images, each with any number of classes.
    """
    try:
        files = {image["id"]: str(image["file_name"]) for image in said["images"]}
        names = {category["id"]: str(category["name"]) for category in said["categories"]}
        found: dict[str, list[str]] = {item: [] for item in files.values()} if several else {}
        for annotation in said["annotations"]:
            item, name = files[annotation["image_id"]], names[annotation["category_id"]]
            have = found.setdefault(item, [])
            have += [name] if name not in have else []
            if len(have) > 1 and not several:
                raise ValueError(f"{path}: {item} is {have[0]} and {name}; expected one class an image")
    except (KeyError, TypeError) as error:
        raise ValueError(
            f"{path} is not COCO's JSON of images, annotations and categories ({type(error).__name__}: {error})"
        ) from None
    yield from found.items()
