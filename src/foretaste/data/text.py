"""Text as numbers: TF-IDF or hashed words by scikit-learn; and tokens padded to one length for a transformer."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from foretaste.errors import check_known, whole_number

TEXT_ENCODERS = ("tfidf", "hashing")
TEXT_NUMBERS = 128  # a text becomes at most as many
MOST_WORDS = 50_000  # of TF-IDF: the most common ones
HASHED_WORDS = 1 << 12  # more of them make the SVD slow: 2¹⁶ took thirty times as long
MASK = "attention_mask"


def encode_text(texts: Sequence[str], how: str = "tfidf") -> Tensor:
    """Texts as rows of numbers: words weighed by TF-IDF (or hashed), then reduced by a truncated SVD.

    Everything is fitted on all texts given, labelled or not. Words count with the logarithm of their number in a text;
    words that occur in one text alone are left out. Rows are centred, then brought to length 1. The numbers do not
    depend on how many threads there are.

    Args:
        texts: strings, of any language that separates words. Empty texts are rows like any other.
        how: "tfidf" (default), or "hashing" into 4096 columns, which keeps no list of words. It knows less.

    Returns:
        (N, D) float32, with D at most 128.

    Raises:
        ValueError: ``how`` is not known, or no text has a word.

    Example:
        >>> from foretaste.data import encode_text
        >>> encode_text(["a good film", "a bad film", "good", "bad"]).shape
        torch.Size([4, 3])
    """
    from sklearn.decomposition import TruncatedSVD
    from sklearn.feature_extraction.text import HashingVectorizer, TfidfVectorizer
    from threadpoolctl import threadpool_limits  # scikit-learn brings it

    check_known("text encoder", how, TEXT_ENCODERS)
    texts = [str(text) for text in texts]
    words: dict[str, Any] = {"strip_accents": "unicode", "token_pattern": r"(?u)\b\w+\b"}
    made = None
    for least in (2, 1):  # of few short texts, every word may be in one alone
        if how == "hashing":
            made = HashingVectorizer(n_features=HASHED_WORDS, **words).fit_transform(texts)
        else:
            try:
                tfidf = TfidfVectorizer(sublinear_tf=True, min_df=least, max_features=MOST_WORDS, **words)
                made = tfidf.fit_transform(texts)
            except ValueError:  # no words are left
                made = None
        if made is not None and made.nnz:
            break
    if made is None or not made.nnz:
        raise ValueError(f"none of {len(texts)} texts has a word; is it the right column? Name it with text=")
    D = min(TEXT_NUMBERS, *(side - 1 for side in made.shape))
    # Several threads add in another order: the last bits would depend on how many there are. And a ratio of variances,
    # which nobody asks for, is 0 / 0 where all texts have the same words.
    with threadpool_limits(1), np.errstate(invalid="ignore"):
        rows = TruncatedSVD(D, random_state=0).fit_transform(made) if D >= 1 else made.toarray()
    rows = rows - rows.mean(0)
    length_N1 = np.linalg.norm(rows, axis=1, keepdims=True)
    length_N1[length_N1 < 1e-6] = 1  # rows had about length 1: the rest is rounding, which must not be scaled up
    return torch.from_numpy(np.ascontiguousarray(rows / length_N1, dtype=np.float32))


def pad_tokens(
    encoded: Sequence[Mapping[str, Any]], *, pad_token_id: int = 0, length: int | None = None
) -> dict[str, Tensor]:
    """Token dicts of different lengths as one dict of tensors, padded on the right.

    ``ft.ntk`` and ``ft.query`` call a network with it as ``net(**x)``. The attention mask is 0 on padding, and is made
    where the dicts have none; a network that obeys it gives the same outputs and the same kernel for any length. Pad
    labelled points and the pool together, for both must have one length.

    Args:
        encoded: one dict a text, of lists or 1-D tensors of one length, such as ``[tokenizer(t) for t in texts]``.
        pad_token_id: fills ``input_ids``; the tokenizer's ``pad_token_id``. Everything else is filled with 0.
        length: of all rows. None (default): that of the longest.

    Returns:
        The same keys, each an int64 tensor (N, T), and "attention_mask".

    Raises:
        ValueError: dicts have different keys, parts of different lengths, or more than ``length`` tokens.

    Example:
        >>> from foretaste.data import pad_tokens
        >>> pad_tokens([{"input_ids": [5, 6, 7]}, {"input_ids": [8]}])["attention_mask"].tolist()
        [[1, 1, 1], [1, 0, 0]]
    """
    if not len(encoded):
        raise ValueError("encoded is empty; expected one dict of tokens for each text")
    keys = list(encoded[0])
    if "input_ids" not in keys and "inputs_embeds" not in keys:
        raise ValueError(f"the first dict has the keys {', '.join(keys) or 'none'}; expected input_ids among them")
    rows = [{key: torch.as_tensor(one[key]).flatten() for key in keys if key in one} for one in encoded]
    faults = []
    for i, row in enumerate(rows):
        if set(encoded[i]) != set(keys):
            faults.append(f"text {i} has the keys {', '.join(encoded[i])}; expected {', '.join(keys)} as the first")
        elif len({len(part) for part in row.values()}) != 1:
            faults.append(f"parts of text {i} have the lengths {', '.join(str(len(part)) for part in row.values())}")
    if faults:
        raise ValueError("; ".join(faults[:10]))
    longest = max(len(row[keys[0]]) for row in rows)
    T = longest if length is None else whole_number("length", length, 1)
    if longest > T:
        raise ValueError(
            f"a text has {longest} tokens and length is {T}; truncate it in the tokenizer (truncation=True)"
        )
    padded = {key: torch.full((len(rows), T), pad_token_id if key == "input_ids" else 0) for key in keys}
    padded.setdefault(MASK, torch.zeros(len(rows), T, dtype=torch.int64))
    for i, row in enumerate(rows):
        n = len(row[keys[0]])
        for key, part in row.items():
            padded[key][i, :n] = part
        if MASK not in row:
            padded[MASK][i, :n] = 1
    return padded
