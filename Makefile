# Two commands do all the set-up on a fresh clone: `make demo` and `make test`.
PYTHON ?= python3
VENV   ?= .venv
BIN     = $(VENV)/bin
# Idle OpenMP threads that spin make small linear algebra many times slower on shared cores.
export OMP_WAIT_POLICY ?= PASSIVE

.PHONY: demo test fast lint format types changes docs tutorials pictures notebooks check bench keep wheel try tree fuzz mutants clean

$(VENV)/.installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --constraint constraints.txt --editable ".[dev]"
	@touch $@

demo: $(VENV)/.installed        ## train, query and compare on scikit-learn's digits; writes demo/index.html
	$(BIN)/foretaste demo

test: $(VENV)/.installed        ## the whole test suite
	$(BIN)/pytest -n 2

fast: $(VENV)/.installed        ## the tests that take no more than a moment each
	$(BIN)/pytest -n 2 -m "not slow"

lint: $(VENV)/.installed
	$(BIN)/ruff check .

format: $(VENV)/.installed      ## rewrite files in the house format
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

types: $(VENV)/.installed        ## mypy on all; pyright on what is public
	$(BIN)/mypy
	$(BIN)/python tools/public_types.py

changes: $(VENV)/.installed      ## what changes/ will add to CHANGELOG.md
	@$(BIN)/towncrier build --draft --version next 2>/dev/null

$(VENV)/.docs: $(VENV)/.installed
	$(BIN)/pip install --quiet --constraint constraints.txt --editable ".[docs]"
	@touch $@

docs: $(VENV)/.docs             ## the guide and the API reference as a site: open site/index.html
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

tutorials: $(VENV)/.installed   ## run docs/tutorials/*.md and draw their pictures anew
	MPLBACKEND=Agg $(BIN)/python tools/tutorials.py

pictures: $(VENV)/.installed    ## draw docs/labelling/*.jpg and *.png anew, in Chromium; with CIFAR10 in $$FORETASTE_DATA
	OMP_NUM_THREADS=1 $(BIN)/python tools/pictures.py

notebooks: $(VENV)/.installed   ## the same pages as notebooks, in notebooks/
	$(BIN)/python tools/tutorials.py --out notebooks

check: lint types docs changes  ## everything CI asks for besides the tests
	$(BIN)/ruff format --check .

bench: $(VENV)/.installed       ## ft.ntk beside torch.func and one forward pass, on this machine
	$(BIN)/python -m benchmarks

keep: $(VENV)/.installed        ## make bench, its ratios kept by commit; an alarm if one rose by a fifth
	mkdir -p dist
	$(BIN)/python -m benchmarks --out dist/bench.json
	$(BIN)/python -m benchmarks.kept dist/bench.json

wheel: $(VENV)/.installed       ## wheel and sdist in dist/
	$(BIN)/pip install --quiet --constraint constraints.txt build
	$(BIN)/python -m build

try: $(VENV)/.installed         ## both in empty environments, with the lowest and the newest versions allowed
	$(BIN)/pip install --quiet --constraint constraints.txt build
	$(BIN)/python tools/try_wheel.py $(if $(TORCH),--torch $(TORCH))

tree: $(VENV)/.installed        ## count modules, private imports, repeated names, cycles
	$(BIN)/python tools/tree.py

fuzz: $(VENV)/.installed        ## generated calls, networks, damaged files and webhooks, interrupts, threads: about an hour
	PYTHONPATH=tests OMP_NUM_THREADS=1 $(BIN)/python -m fuzz

mutants: $(VENV)/.installed     ## plant small faults and see whether the tests notice: about an hour
	$(BIN)/python tools/mutants.py --jobs 2

clean:
	rm -rf $(VENV) .pytest_cache .ruff_cache .mypy_cache demo site notebooks
