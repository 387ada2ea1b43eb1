"""What several folders share: checks of arguments, nearest names, sizes; changed settings; out of memory; seals."""

import logging
import math
import re
import stat
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from difflib import get_close_matches
from hashlib import blake2b
from numbers import Real
from operator import index
from os import PathLike
from pathlib import Path

LISTED = 40  # names in one message; a network may have thousands of parameters
# Control characters but tab and line feed; marks that turn the direction of text; bytes of a name that are not UTF-8.
UNPRINTABLE = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
FORMULA_STARTS = ("=", "+", "-", "@", "\t", "\r", "\n", "＝", "＋", "－", "＠")


def did_you_mean(name: object, names: Iterable[str], listed: str | None = "Known") -> str:
    """The end of a message about an unknown name: a valid one that is near; then all, unless ``listed`` is None.

    >>> "unknown strategy 'mlmok'" + did_you_mean("mlmok", ["badge", "mlmoc"], "Registered")
    "unknown strategy 'mlmok'; did you mean 'mlmoc'? Registered: badge, mlmoc"
    >>> "unknown strategy 'best'" + did_you_mean("best", ["badge", "mlmoc"], "Registered")
    "unknown strategy 'best'; registered: badge, mlmoc"
    """
    names = [str(n) for n in names]
    near = nearest_name(str(name), names)
    guess = "" if near is None else f"; did you mean {near!r}?"
    if listed is None:
        return guess
    start = f"{guess} {listed}" if guess else f"; {listed[0].lower()}{listed[1:]}"
    return f"{start}: {shorten(names) or 'none'}"


def nearest_name(name: str, names: Iterable[str]) -> str | None:
    """The name that was probably meant: one letter in four differs at most, or one contains the other.

    >>> nearest_name("Entrpoy", ["entropy", "eer"]), nearest_name("conf", ["least_confidence"])
    ('entropy', 'least_confidence')
    >>> nearest_name("target", ["age", "region"]) is None  # all letters of age, in order, and yet nothing like it
    True
    """
    short: dict[str, str] = {}
    for known in names:
        short.setdefault(_folded(known), known)
    given = _folded(name)
    # Difflib is quick and finds candidates; its ratio alone takes target for age.
    close = get_close_matches(given, short, 5, 0.6)
    close += [known for known in short if len(given) > 3 and given in known]
    return next((short[known] for known in close if _is_near(given, known)), None)


def _folded(name: str) -> str:
    return re.sub(r"[-_ ]", "", name.casefold()) or name


def _is_near(a: str, b: str) -> bool:
    short, long = sorted((a, b), key=len)
    if (len(short) > 2 and long.startswith(short)) or (len(short) > 3 and short in long):
        return True
    wrong = _edits(a, b)
    return wrong <= max(1, len(long) // 4) and 2 * wrong < len(long)


def _edits(a: str, b: str) -> int:
    """Letters that were left out, added, replaced, or swapped with the next (optimal string alignment)."""
    rows = [[*range(len(b) + 1)]]
    for i, x in enumerate(a, 1):
        row = [i]
        for j, y in enumerate(b, 1):
            least = min(row[-1] + 1, rows[-1][j] + 1, rows[-1][j - 1] + (x != y))
            if i > 1 and j > 1 and x == b[j - 2] and y == a[i - 2]:
                least = min(least, rows[-2][j - 2] + 1)
            row.append(least)
        rows.append(row)
    return rows[-1][-1]


class Faults:
    """Errors collected to be raised as one: ``with faults:`` keeps a ValueError or TypeError and goes on.

    >>> faults = Faults()
    >>> for n in (0, 1):
    ...     with faults:
    ...         _ = whole_number(f"batch {n}", n, 1)
    >>> faults.add("no oracle")
    >>> faults.raise_all()
    Traceback (most recent call last):
    ValueError: batch 0 is 0; expected a whole number of at least 1; no oracle
    """

    def __init__(self) -> None:
        self.found: list[str] = []
        self._end = ""

    def __bool__(self) -> bool:
        return bool(self.found)

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> bool:
        end, self._end = self._end, ""
        if not isinstance(error, ValueError | TypeError):
            return False
        self.found.append(f"{error}{end}")
        return True

    def ending(self, words: str) -> "Faults":
        """For ``with``: the message of the next error ends with these words."""
        self._end = words
        return self

    def add(self, fault: str) -> None:
        """One more fault."""
        self.found.append(fault)

    def raise_all(self) -> None:
        """Raise a ValueError with all messages, if there are any."""
        if self.found:
            raise ValueError("; ".join(self.found))


def check_known(kind: str, name: object, names: Iterable[str]) -> None:
    """Raise unless ``name`` is one of ``names``."""
    names = sorted(names)
    if not isinstance(name, str) or name not in names:
        raise ValueError(f"unknown {kind} {_shown(name)}{did_you_mean(name, names)}")


def check_counts(**counts: object) -> None:
    """Raise unless every argument is a whole number above zero."""
    for name, n in counts.items():
        whole_number(name, n, 1)


def whole_number(name: str, value: object, least: int = 0, most: int = 2**63 - 1) -> int:
    """An argument as an int; numpy's integers are whole numbers too. Raises a ValueError that names the argument."""
    try:
        if isinstance(value, bool | str | bytes):
            raise TypeError
        n = index(value)  # type: ignore[arg-type]
    except TypeError:
        raise ValueError(f"{name} is {_shown(value)}; expected a whole number of at least {least}") from None
    if not least <= n <= most:
        limit = f"at least {least}" if n < least else f"at most {most}"
        raise ValueError(f"{name} is {n}; expected a whole number of {limit}")
    return n


def real_number(
    name: str, value: object, least: float = -math.inf, *, above: bool = False, finite: bool = True
) -> float:
    """An argument as a float: at least ``least``, or above it. Raises a ValueError that names the argument."""
    wanted = f"a number {'above' if above else 'of at least'} {least:g}" if least > -math.inf else "a number"
    x = math.nan
    if isinstance(value, Real) and not isinstance(value, bool):
        x = float(value)
    if not (x > least if above else x >= least) or (finite and math.isinf(x)):
        raise ValueError(f"{name} is {_shown(value)}; expected {wanted}")
    return x


def check_callable(name: str, value: object, takes: str) -> None:
    """Raise unless an argument is None or a function."""
    if value is not None and not callable(value):
        raise ValueError(f"{name} is a {type(value).__name__}; expected a function of {takes}")


def _shown(value: object) -> str:
    """An argument in a message: its value where that is short, else its type."""
    text = repr(value) if isinstance(value, int | float | str | bytes | complex | None) else ""
    return text if 0 < len(text) <= 40 else f"a {type(value).__name__}"


def format_bytes(n: float) -> str:
    """A size in decimal units, to three digits: 1.44 GB."""
    for unit in ("B", "kB", "MB", "GB"):
        if n < 999.5:
            return f"{n:.3g} {unit}"
        n /= 1000
    return f"{n:.3g} TB"


def format_seconds(seconds: float) -> str:
    """A duration in its usual unit, to two digits: 0.12 s, 45 s, 3.2 min, 1.5 h."""
    for unit, size in (("days", 86_400), ("h", 3600), ("min", 60)):
        if seconds >= 1.5 * size:
            return f"{seconds / size:.1f} {unit}"
    if seconds >= 9.95:
        return f"{seconds:.0f} s"
    return f"{seconds:.2g} s" if seconds >= 0.001 else "under 1 ms"


def counted(n: int, one: str, many: str | None = None) -> str:
    """A number with its noun in the singular or plural; ``many`` is ``one`` with an s unless given.

    >>> counted(1, "file"), counted(2, "file"), counted(1, "class is", "classes are")
    ('1 file', '2 files', '1 class is')
    """
    return f"{n} {one if n == 1 else many or one + 's'}"


def shorten(names: Sequence[str], most: int = LISTED) -> str:
    """The first names, and how many more there are: a, b and 3 more."""
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")


def join_words(parts: Sequence[str]) -> str:
    """a, b and c."""
    return parts[0] if len(parts) == 1 else f"{', '.join(parts[:-1])} and {parts[-1]}"


@contextmanager
def changed(*settings: tuple[object, str, object]) -> Iterator[None]:
    """Within, attributes have other values: (owner, name, value). Afterwards, also after an error, the old ones."""
    before = [(owner, name, getattr(owner, name)) for owner, name, _ in settings]
    try:
        for owner, name, value in settings:
            setattr(owner, name, value)
        yield
    finally:
        for owner, name, value in before:
            setattr(owner, name, value)


@contextmanager
def errors_only() -> Iterator[None]:
    """Within, foretaste logs errors only."""
    log = logging.getLogger("foretaste")
    level = log.level
    log.setLevel(logging.ERROR)
    try:
        yield
    finally:
        log.setLevel(level)


# Names that come from files: a stranger may have written them.


def printable(text: str) -> str:
    """The text with control characters escaped, so that a name cannot steer a terminal.

    >>> print(printable("f\\x1b[2J.png"))
    f\\x1b[2J.png
    """
    return UNPRINTABLE.sub(_escaped, text)


def _escaped(found: re.Match[str]) -> str:
    code = ord(found[0])
    if 0xDC80 <= code <= 0xDCFF:  # how Python keeps a byte of a name that is not UTF-8
        return f"\\x{code - 0xDC00:02x}"
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}"


def is_utf8(text: str) -> bool:
    """Whether UTF-8 can hold the text. Names of files, and strings in arrays, may be anything.

    >>> is_utf8("café"), is_utf8("caf\\udce9")
    (True, False)
    """
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def csv_cell(text: str) -> str:
    """A cell that no spreadsheet takes for a formula: an apostrophe comes before =, +, -, @, tab and line ends.

    Numbers stay numbers.

    >>> csv_cell('=HYPERLINK("x")'), csv_cell("-0.5"), csv_cell("cat.png")
    ('\\'=HYPERLINK("x")', '-0.5', 'cat.png')
    """
    if not text.startswith(FORMULA_STARTS):
        return text
    try:
        float(text)
    except ValueError:
        return f"'{text}"
    return text if text == text.strip() else f"'{text}"


def check_regular(path: str | PathLike[str]) -> None:
    """Raise unless the path is a regular file: reading a pipe would wait for ever, and a device has no end."""
    path = Path(path)
    try:
        mode = path.stat().st_mode
    except (OSError, ValueError) as error:
        raise FileNotFoundError(f"{path} cannot be read: {getattr(error, 'strerror', None) or error}") from None
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(f"{path} is a folder; expected a file")
    if not stat.S_ISREG(mode):
        raise ValueError(f"{path} is a pipe, a socket or a device; expected a regular file")


# Messages of libraries that are out of memory: torch on a CPU, oneDNN, CUDA, cuBLAS, cuDNN (the last two).
NO_MEMORY_WORDS = (
    "allocate memory", "could not create a primitive", "CUDA error: out of memory", "_STATUS_ALLOC_FAILED",
    "was unable to find an engine to execute this computation", "Unable to find a valid cuDNN algorithm",
)  # fmt: skip


def is_out_of_memory(e: Exception) -> bool:
    """Whether an allocation failed. Only torch's own GPU allocator has an error class for it, known here by its name.

    >>> is_out_of_memory(RuntimeError("DefaultCPUAllocator: can't allocate memory")), is_out_of_memory(RuntimeError())
    (True, False)
    """
    said = str(e).split("\n")[0]
    return isinstance(e, MemoryError) or (
        isinstance(e, RuntimeError)
        and (type(e).__name__ == "OutOfMemoryError" or any(words in said for words in NO_MEMORY_WORDS))
    )


# Sealed text. A seal shows damage and careless edits; it is no defence against forgery.

SEAL = re.compile(r'(?:, )?"checksum": "([0-9a-f]{16})"\}')


def checksum(text: str) -> str:
    """16 hexadecimal digits that differ where the text does."""
    return blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).hexdigest()


def seal_json(text: str) -> str:
    """The text of a JSON object, with its own checksum as the last entry.

    >>> seal_json('{"a": 1}')
    '{"a": 1, "checksum": "165b44bb3d3e0923"}'
    """
    return f'{text[:-1]}{", " if len(text) > 2 else ""}"checksum": "{checksum(text)}"}}'


def seal_holds(text: str) -> bool | None:
    """Whether a JSON object is as it was sealed; None if it has no seal.

    >>> seal_holds(seal_json('{"a": 1}')), seal_holds(seal_json('{"a": 1}').replace("1", "2", 1)), seal_holds("{}")
    (True, False, None)
    """
    start = text.rfind('"checksum"')
    if start < 0:
        return None
    start -= 2 if text[:start].endswith(", ") else 0
    found = SEAL.fullmatch(text, start)
    return found is not None and checksum(text[:start] + "}") == found[1]
