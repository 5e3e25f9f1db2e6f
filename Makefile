# Everything runs in a local virtual environment that these targets make. Override: make test PYTHON=python3.12
PYTHON ?= python3
VENV ?= .venv
# With TORCH= (empty) the tests that need torch are skipped.
TORCH ?= torch==2.13.0
# The oldest Triton that laneloom supports, and CUDA's compiler of its time: the compile tier runs under both as well.
OLD_TRITON ?= triton==3.6.0
OLD_NVRTC ?= nvidia-cuda-nvrtc==13.0.*
# What makes the site; nothing else needs it.
DOCS ?= "mkdocs>=1.6,<2" "mkdocs-material>=9.6" "mkdocstrings[python]>=0.29"
BIN := $(VENV)/bin
comma := ,
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check
OLD_PIP := $(BIN)/python -m pip --python $(VENV)-old/bin/python install --quiet --disable-pip-version-check
PACKAGES := -c "import sysconfig; print(sysconfig.get_path('purelib'))"

.PHONY: demo docs test test-old-triton lint clean help

help:
	@echo "make demo   compile a WMMA matmul for a GPU that is not here, run it, check it, explain it"
	@echo "make test   all tests that need no GPU"
	@echo "make lint   ruff, pyright"
	@echo "make docs   the pages of docs/ and the reference as a site, build/site"

demo: $(VENV)/core.stamp
	$(BIN)/laneloom demo

test: $(VENV)/dev.stamp
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist worksteal --ignore=tests/gpu

test-old-triton: $(VENV)/dev.stamp $(VENV)-old/dev.stamp
	OMP_NUM_THREADS=1 LANELOOM_TESTS=kernels $(VENV)-old/bin/python -m pytest -n 2 --dist worksteal tests/compile

# Node looks for garbage among new objects after 128 MB of them: a twelfth of pyright's processor time.
lint: $(VENV)/dev.stamp
	$(BIN)/ruff check src tests
	NODE_OPTIONS=--max-semi-space-size=128 $(BIN)/pyright --pythonpath $(BIN)/python

# Needs none of laneloom's own dependencies: the reference is read, not imported.
docs:
	$(PYTHON) -m venv $(VENV)-docs
	$(VENV)-docs/bin/python -m pip install --quiet --disable-pip-version-check $(DOCS)
	NO_MKDOCS_2_WARNING=1 $(VENV)-docs/bin/mkdocs build --quiet
	@echo build/site/index.html

$(VENV)/pip.stamp:
	$(PYTHON) -m venv $(VENV)
	$(PIP) --upgrade pip
	@touch $@

$(VENV)/core.stamp: pyproject.toml $(VENV)/pip.stamp
	$(PIP) --editable .
	@touch $@

# torch by itself: its exact version and the other requirements together take pip minutes to resolve. What it and Triton
# ask for comes with the rest, so that two calls of pip may unpack them at the same time.
$(VENV)/torch.stamp: $(VENV)/pip.stamp
	$(if $(TORCH),$(PIP) --no-deps "$(TORCH)")
	@touch $@

$(VENV)/triton.stamp: $(VENV)/pip.stamp
	$(PIP) --no-deps triton nvidia-cuda-nvrtc
	@touch $@

$(VENV)/dev.stamp: pyproject.toml $(VENV)/torch.stamp $(VENV)/triton.stamp
	$(PIP) --editable ".[dev,report,tune,cuda$(if $(TORCH),$(comma)packages)]"
	@touch $@

# Both in front of all else that the other environment has.
$(VENV)-old/dev.stamp: $(VENV)/pip.stamp
	$(PYTHON) -m venv --without-pip $(VENV)-old
	$(OLD_PIP) --no-deps "$(OLD_TRITON)" "$(OLD_NVRTC)"
	@echo "import site; site.addsitedir('$$($(BIN)/python $(PACKAGES))')" \
		> "$$($(VENV)-old/bin/python $(PACKAGES))/newest.pth"
	@touch $@

clean:
	rm -rf $(VENV) $(VENV)-old $(VENV)-docs build/site .pytest_cache .ruff_cache .hypothesis
