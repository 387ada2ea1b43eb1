"""The examples in docstrings run, and every public function has one."""

import doctest
import pkgutil
from importlib import import_module

import pytest

import foretaste

FOLDERS = [import_module(f"foretaste.{name}") for name in ("acquire", "lookahead", "pick")]
MODULES = [folder.__name__ for folder in FOLDERS]
MODULES += [m.name for folder in FOLDERS for m in pkgutil.iter_modules(folder.__path__, f"{folder.__name__}.")]
PUBLIC = {
    "acquire": ["register", "strategies"],
    "lookahead": ["linearize", "from_kernels", "State"],
    "pick": ["query", "Request", "gp_predict"],
}


@pytest.mark.usefixtures("_names")
@pytest.mark.parametrize("name", MODULES)
def test_examples_run(name):
    assert doctest.testmod(import_module(name)).failed == 0


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
