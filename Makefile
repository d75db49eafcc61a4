# Everything a person or the gate runs: make run, make test, make lint, make bench; make torture for the whole of what
# make test takes samples of; make lowest and make torch-VERSION for other versions of what it needs.
PYTHON ?= python3
VENV ?= .venv
BIN = $(VENV)/bin
STAMP = $(VENV)/.installed
PIP_QUIET ?= -q

.PHONY: run test torture lowest lint bench clean

$(STAMP): pyproject.toml constraints-dev.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install $(PIP_QUIET) -c constraints-dev.txt -e '.[dev]'
	@touch $(STAMP)

run: $(STAMP)
	$(BIN)/outlast run bytelm

test: $(STAMP)
	$(BIN)/python -m pytest -q -n 3 --dist worksteal tests  # many wait: for a process, a deadline, a disk

torture: $(STAMP)
	OUTLAST_TORTURE=1 $(BIN)/python -m pytest -q -rP --timeout 1800 -n 3 --dist worksteal tests/faults  # one waits: the soak

# The library with another torch, as in make torch-2.6.0; for most of them pip takes gigabytes.
torch-%:
	$(PYTHON) -m venv .venv-torch-$*
	grep -v '^torch==' constraints-dev.txt > .venv-torch-$*/constraints.txt
	.venv-torch-$*/bin/python -m pip install $(PIP_QUIET) -c .venv-torch-$*/constraints.txt torch==$* -e '.[dev]'
	.venv-torch-$*/bin/python -m pytest -q -n 2 --dist worksteal tests/worker

# The oldest versions that pyproject.toml allows; for that torch, too.
lowest:
	$(PYTHON) -m venv .venv-lowest
	sed -nE '/^dependencies/,/^]/s/^  "([a-z-]+)>=([0-9.]+).*/\1==\2/p' pyproject.toml > .venv-lowest/constraints.txt
	.venv-lowest/bin/python -m pip install $(PIP_QUIET) -c .venv-lowest/constraints.txt -e '.[dev]'
	.venv-lowest/bin/python -m pytest -q -n 2 --dist worksteal tests/jobs tests/supervisor tests/worker

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	@for folder in jobs/outlast_jobs/shipped/*/ jobs/outlast_jobs/templates/; do \
	  (cd $$folder && MYPYPATH=. $(CURDIR)/$(BIN)/mypy --strict --explicit-package-bases --config-file= \
	    --untyped-calls-exclude torch --cache-dir $(CURDIR)/.mypy_cache/scripts *.py) || exit 1; \
	done
	$(BIN)/lint-imports

# In an environment of its own: the peers are no part of outlast.
bench: $(STAMP) bench/.venv/.installed
	bench/.venv/bin/python bench/results.py --alone $(BIN)/python

bench/.venv/.installed: pyproject.toml constraints-dev.txt bench/requirements.txt
	$(PYTHON) -m venv bench/.venv
	bench/.venv/bin/python -m pip install $(PIP_QUIET) -c constraints-dev.txt -e . -r bench/requirements.txt
	@touch $@

clean:
	rm -rf $(VENV) .venv-* bench/.venv build dist
