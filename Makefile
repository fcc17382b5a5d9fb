# make book: sets everything up, executes the chapters and builds the site.
# make test: sets everything up and runs every test.
# Both need Python 3.11 or newer, git and make; nothing is installed outside .venv.

VENV  := .venv
BIN   := $(VENV)/bin
READY := $(VENV)/.ready
TORCH := torch==2.13.0
TIMM  := timm==1.0.31
PIP   := $(BIN)/python -m pip --disable-pip-version-check --no-input

# The first Python on PATH that the pinned packages support.
PYTHON ?= $(shell for p in python3 python3.13 python3.12 python3.11 python; do \
	$$p -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13))' 2>/dev/null \
	&& echo $$p && break; done)

SOURCES := $(wildcard chapters/*.md chapters/*.ipynb mhanw/*.py mhanw/*/*.py mhanw_core/*.py \
	mhanw_core/*.yml data/*)
PAGES   := $(wildcard *.md _*.yml references.bib _static/* vendor/mathjax/*)

.PHONY: book test check refresh weights clean
.DELETE_ON_ERROR:

book: _build/html/index.html
	@echo "The site is $(CURDIR)/_build/html/index.html"

test: $(READY) weights
	$(BIN)/python -m pytest

check: $(READY)
	$(BIN)/ruff check . && $(BIN)/ruff format --check . && $(BIN)/mypy

refresh: $(READY) weights
	$(BIN)/mhanw refresh

# Nothing is executed or built again until something it depends on has changed.
_build/verified: $(READY) $(SOURCES) | weights
	$(BIN)/mhanw verify
	@mkdir -p $(@D) && touch $@

_build/html/index.html: _build/verified $(PAGES)
	$(BIN)/mhanw build --no-verify
	@touch $@

# The public weights that some sections read. Without them the book builds and says what it left out.
weights: $(READY)
	@test -f models/minilm/model.safetensors || $(BIN)/mhanw models fetch || \
		echo "Going on without the weights: the sections that need them say so."

$(READY): requirements.lock pyproject.toml Makefile
	@test -n "$(PYTHON)" || { echo "Python 3.11, 3.12 or 3.13 is needed; none was found on PATH. Install one, or name it: make PYTHON=/path/to/python3.12"; exit 1; }
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(PIP) install --quiet -r requirements.lock
	@$(MAKE) --no-print-directory torch
	$(PIP) install --quiet --no-deps $(TIMM)
	$(PIP) install --quiet --no-deps --no-build-isolation --editable .
	@touch $@

# PyTorch's own index has the small CPU build. Where it does not answer, the ordinary index serves.
.PHONY: torch
torch:
	@$(BIN)/python -c 'import torch' 2>/dev/null || \
	{ $(PIP) install --quiet --no-deps --timeout 10 --retries 0 \
		--index-url https://download.pytorch.org/whl/cpu '$(TORCH)' 2>/dev/null; } || \
	{ echo "PyTorch's CPU index did not answer; installing $(TORCH) from the ordinary index. On Linux that build can take several GB."; \
	  $(PIP) install --quiet '$(TORCH)'; } || \
	echo "PyTorch could not be installed: the chapters that compare with it will not run."

clean:
	rm -rf _build runs $(VENV)
