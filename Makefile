# The commands of trn-validate; `make help` lists them. Every one of them does the set-up
# that it needs first, which costs nothing when nothing changed.

PYTHON ?= python3
TORCH_INDEX ?=
EXTRAS ?=
TITAN_REVISION ?=
TARGET ?=
MODEL ?=
STAGE ?=
SET ?=
LAUNCHER ?=
NODES ?=
N ?= 20
BUNDLE ?=
ARGS ?=
TRN_VALIDATE_HOST_ROOT ?=

.DEFAULT_GOAL := help
MAKEFLAGS += --no-print-directory

quote = '$(subst ','\'',$(1))'

# A variable from make's command line reaches recipes but not $(shell), so it is passed by hand.
SETUP = TRN_VALIDATE_HOST_ROOT=$(call quote,$(TRN_VALIDATE_HOST_ROOT)) $(PYTHON) -m scripts.setup \
  --target $(call quote,$(TARGET)) $(if $(filter command environment,$(origin PYTHON)),--python-given)
INSTALL = command -v $(PYTHON) >/dev/null || { echo "$(PYTHON) was not found: install Python 3.11 to 3.14, \
  or name one with PYTHON=" >&2; exit 2; }; $(SETUP) --torch-index $(call quote,$(TORCH_INDEX)) \
  $(if $(TITAN_REVISION),--titan-revision $(call quote,$(TITAN_REVISION))) \
  $(foreach extra,$(EXTRAS),--extra $(call quote,$(extra)))

# Asked once, and only by a recipe that needs it.
PY = $(eval PY := $$(shell $(SETUP) --which))$(PY)

PLAN = $(if $(TARGET),--config $(call quote,configs/$(TARGET).yaml)) \
  $(if $(MODEL),--path $(call quote,$(MODEL))) \
  $(if $(LAUNCHER),--set $(call quote,launcher=$(LAUNCHER))) \
  $(if $(NODES),--set $(call quote,nodes=$(NODES))) \
  $(foreach pair,$(SET),--set $(call quote,$(pair))) $(ARGS)

# Outside of an allocation Slurm is asked for one, which ends with the run. salloc gives 0 for a
# command that was killed, so a shell between the two turns that into a status.
ALLOCATE = $(if $(filter slurm,$(LAUNCHER)),$(if $(SLURM_JOB_ID),,salloc --nodes $(or $(NODES),1) $(SALLOC) sh -c '"$$@"; exit $$?' sh))

ALLOCATES = $(if $(ALLOCATE),command -v salloc >/dev/null || { echo "salloc was not found: type this where a \
  Slurm can be reached; without LAUNCHER= the run stays on this machine" >&2; exit 2; })

.PHONY: help setup setup-dev named validate rerun status plan report compare index bundle verify sample answers vendor-run calibrate test test-slurm lint rehearse coverage bench defects soak clean distclean

help: ## List the commands
	@echo "usage: make COMMAND [VARIABLE=value ...]"
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  %-10s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)
	@echo "  TARGET=cpu          plan: configs/TARGET.yaml (default: chosen from the host)"
	@echo "  MODEL=native        model path of the plan"
	@echo "  STAGE=stage.name    the stage that rerun repeats"
	@echo "  N=20                runs of soak"
	@echo "  BUNDLE=file.tar.gz  the bundle that verify looks at"
	@echo "  SET='a.b=1 c=2'     settings of the plan to change"
	@echo "  LAUNCHER=slurm      what starts the launches (default: the plan's, local)"
	@echo "  NODES=2             nodes that the run is spread over, and SALLOC= for further options of salloc"
	@echo "  ARGS='--new'        passed on as they are (run: --from, --until, --force, --new, --require-evidence)"
	@echo "  PYTHON=python3.12   the Python to use"
	@echo "  TORCH_INDEX=URL     index that .venv takes torch from, for example the one of the CPU wheels"
	@echo "  TITAN_REVISION=REV  revision of the vendor's fork of torchtitan on a Trn2; none leaves it out"
	@echo "  EXTRAS=name         further extras of pyproject.toml to install"

setup: ## Make the environment: .venv, or what the one that is there lacks on a Trn2
	@$(INSTALL)

setup-dev:
	@$(INSTALL) --extra dev

validate: setup ## Validate this machine, stage after stage
	@$(ALLOCATES)
	$(ALLOCATE) $(PY) pipeline.py run $(PLAN)

named:
	$(if $(STAGE),@:,$(error name the stage, for example: make rerun STAGE=baseline.eager))

rerun: named setup ## Repeat one stage: STAGE=
	@$(ALLOCATES)
	$(ALLOCATE) $(PY) pipeline.py run --only $(call quote,$(STAGE)) $(PLAN)

status: setup ## Show how the newest run stands
	$(PY) pipeline.py status $(PLAN)

plan: setup ## Show what validate would do
	$(PY) pipeline.py plan $(PLAN)

calibrate: setup ## Repeat the control run with other signs: how much noise varies
	$(PY) pipeline.py calibrate $(PLAN)

vendor-run: setup ## Run the vendor's shipped config for a few steps, outside the gate
	$(PY) pipeline.py vendor-run $(PLAN)

answers: setup ## Show what only a Trn2 can tell, and what the newest run says of it
	$(PY) pipeline.py answers $(ARGS)

compare: setup ## Show runs side by side: ARGS='FOLDER FOLDER'
	$(PY) pipeline.py compare $(ARGS)

index: setup ## Write index.html of all runs
	$(PY) pipeline.py index $(ARGS)

report: setup ## Write the report of the newest run
	$(PY) pipeline.py report $(PLAN)

bundle: setup ## Pack the newest run for a reviewer
	$(PY) pipeline.py bundle $(ARGS)

verify: setup ## Compute again all that BUNDLE says
	$(PY) pipeline.py verify $(call quote,$(BUNDLE)) $(ARGS)

sample: setup ## Make the committed sample bundle from a new run on the CPU
	$(PY) -m scripts.sample $(ARGS)

test: setup-dev ## Run the tests
	$(PY) -m pytest $(ARGS)

test-slurm: setup-dev ## Run the tests of two nodes on a Slurm of their own, where it may be started
	$(PY) -m scripts.slurm_cluster install
	TRN_VALIDATE_TEST_SLURM=1 $(PY) -m pytest tests/slurm $(ARGS)

lint: setup-dev ## Check style, types and import directions
	$(PY) -m ruff check .
	$(PY) -m ruff format --check .
	$(PY) -m mypy
	$(PY) -c 'from importlinter.cli import lint_imports_command as lint; lint()'

rehearse: setup-dev ## Rehearse the code path of a Trainium on a device that computes on the CPU
	$(PY) -m scripts.rehearsal $(foreach pair,$(SET),--set $(call quote,$(pair))) $(ARGS)

coverage: setup-dev ## Show which lines of trn_validate/neuron no unit test runs
	$(PY) -m scripts.neuron_coverage $(ARGS)

bench: setup ## Run the benchmark
	$(PY) -m scripts.bench $(ARGS)

defects: setup-dev ## Seed every defect and show which check stops it
	$(PY) -m scripts.defects $(ARGS)
	$(PY) -m scripts.kernel_defects

soak: setup ## Run the CPU plan N times under other seeds, threads and load: N=
	$(PY) -m scripts.soak --repeats $(call quote,$(N)) $(ARGS)

clean: ## Remove caches and build output, never reports/ nor .venv
	rm -rf .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache build *.egg-info
	find . \( -path ./.venv -o -path ./reports -o -path ./.git \) -prune \
	  -o -type d -name __pycache__ -prune -exec rm -rf {} +

distclean: clean ## Remove .venv too
	rm -rf .venv
