# One command each: `make run` shows it, `make test` proves it. Set-up into .venv is part of every target and
# costs nothing while the locks in requirements/ and setup.cfg stay the same.

PYTHON ?=
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
READY_FOR_DEMO := $(VENV)/.ready-for-demo
SETUP := setup.cfg emulators/setup.cfg requirements/uv.txt tools/setup.sh
DEMO ?= benchmarks.demo
ARGS ?=
# Three workers for two cores, because tests wait for servers half of their time. Each begins with a third of the tests
# and takes over tests of another when it has no more, so most modules run in one worker and their servers start once.
SHARED := -n 3 --dist worksteal
FAST := tests/unit -m "not slow" $(SHARED)

# Many images set this variable. Each of the hundreds of Python processes of a test run would then compile Beam, pandas
# and the test modules: a third of all CPU time.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: run quickstart test long check campaign mutants evidence matrix lint types bench site dist lock clean help
.DEFAULT_GOAL := help

help:       ## what there is
	@sed -n 's/^\([a-z]*\):.*##/\1\t/p' $(MAKEFILE_LIST) | expand -t 12

run: $(READY_FOR_DEMO)  ## the demo: Spanner (emulator or simulated), Spark, a kill, a proof (two to three minutes)
	$(BIN)/python -m $(DEMO) $(ARGS)

quickstart: $(READY_FOR_DEMO)  ## penstock quickstart: the same in short, on a simulated database (about a minute)
	$(BIN)/penstock quickstart $(ARGS)

test: $(READY)      ## the tests (10 minutes on two cores)
	$(BIN)/python -m pytest $(SHARED) $(ARGS)

long: $(READY)      ## the long tests, which CI runs too: other services and modes, and pipelines that are killed again and again (half an hour more)
	PENSTOCK_LONG=1 $(BIN)/python -m pytest $(SHARED) $(ARGS)

check: lint         ## lint and the quick unit tests (a minute and a half)
	$(BIN)/python -m pytest $(FAST) $(ARGS)

# Every step runs, also after one that failed: each writes evidence of its own.
campaign: $(READY)  ## the full numbers, for a night and a day; writes docs/evidence/*.json
	@status=0; folder=$$($(BIN)/python tools/evidence.py --folder); step() { echo "== $$*"; "$$@" || status=1; }; \
	step env PENSTOCK_CAMPAIGN=1 $(BIN)/python -m pytest --timeout 0 $(ARGS); \
	step $(BIN)/python -m tools.matrix; \
	step $(BIN)/python -m tools.beam_suites.page; \
	step $(BIN)/python benchmarks/object_store_epoch.py --evidence $$folder/object-store-epoch.json; \
	step $(BIN)/python benchmarks/pace.py --rounds 3; \
	step $(BIN)/python benchmarks/peers/bigtable/run.py; \
	step $(BIN)/python tests/mutants/run.py --jobs 2 --evidence $$folder/mutants.json --resume; \
	exit $$status

mutants: $(READY)   ## each rule broken on purpose, one at a time; the named test must turn red
	$(BIN)/python tests/mutants/run.py $(ARGS)

evidence: $(READY)  ## which evidence is stale: the commits since that changed its files
	$(BIN)/python tools/evidence.py $(ARGS)

matrix: $(READY)    ## versions of Python, Spark, Java and Beam; writes docs/versions.md
	$(BIN)/python -m tools.matrix $(ARGS)

lint: $(READY)      ## ruff: rules and format; import-linter: which package may import which; mutants fit their files
	$(BIN)/python -m ruff check .
	$(BIN)/python -m ruff format --check .
	$(BIN)/lint-imports --no-cache --no-logo
	$(BIN)/python tests/mutants/check.py

types: $(READY)     ## strict mypy on what ships
	cd src && ../$(BIN)/python -m mypy --config-file ../pyproject.toml -p penstock
	cd emulators/src && MYPYPATH=../../src ../../$(BIN)/python -m mypy --config-file ../../pyproject.toml -p penstock_emulators

bench: $(READY)     ## every benchmark, with its ratios
	@set -e; for script in benchmarks/[a-z]*.py; do echo "== $$script"; $(BIN)/python "$$script" $(ARGS); done

site: $(READY)      ## the documentation as a static site, in build/site
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict --quiet

dist: $(READY)      ## the wheels of both distributions, in dist; they install and run without the clone
	$(BIN)/python -m tools.dist

lock:       ## requirements/: adds what setup.cfg requires now (ARGS=--upgrade: newest versions of everything)
	@PYTHON="$(PYTHON)" sh tools/setup.sh "$(VENV)" uv
	$(BIN)/python -m tools.lock $(ARGS)

clean:      ## remove what the other targets made
	rm -rf $(VENV) build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis penstock-run
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(READY): $(SETUP) requirements/test.txt
	@PYTHON="$(PYTHON)" sh tools/setup.sh "$(VENV)" test
	@touch $@ $(READY_FOR_DEMO)

$(READY_FOR_DEMO): $(SETUP) requirements/run.txt
	@PYTHON="$(PYTHON)" sh tools/setup.sh "$(VENV)" run
	@touch $@
