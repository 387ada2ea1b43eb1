"""Every public function has an example, which tests/project/test_examples.py runs."""

from importlib import import_module

import pytest

import foretaste

PUBLIC = {
    "acquire": ["register", "strategies"],
    "lookahead": ["linearize", "from_kernels", "State"],
    "pick": ["query", "Request", "gp_predict"],
}


@pytest.mark.parametrize("name", [f"{folder}.{name}" for folder, names in PUBLIC.items() for name in names])
def test_public_functions_explain_themselves(name):
    folder, function = name.split(".")
    text = getattr(import_module(f"foretaste.{folder}"), function).__doc__
    assert ">>>" in text
    assert "Args:" in text or "Attributes:" in text or "Returns:" in text


def test_every_argument_of_a_query_is_explained():
    for function in (foretaste.query, foretaste.linearize, foretaste.register):
        code = function.__code__
        for argument in code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]:
            assert f"        {argument}: " in function.__doc__, argument
