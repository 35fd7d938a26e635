# Rerail's commands; each sets up what it needs in .venv first. `make demo` and `make test` are the two to know.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# The CDK's own command, on the Node that pip installed. What else `make deploy` is to be told: ARGS="--region eu-west-1".
CDK = $(BIN)/python -m cli.deploy.cdk
ARGS ?=
# Options of pip-audit, such as --ignore-vuln ID.
AUDIT ?=
PROGRAMS := agent app.py bench cli container integrations/airflow/rerail_airflow lambdas local stacks tools
SCENARIO ?= crash

.PHONY: help setup demo test test-fast test-load image-test lock browser rehearse check audit audit-online sbom release proof mutants soak bench
.PHONY: bench-training bench-goodput format docs docs-serve
.PHONY: test-airflow synth deploy destroy cdk clean

help: ## this list
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 18

# uv is pinned with its hashes too. INSTALLER=pip installs the same packages with pip; TORCH_BACKEND=auto|cu130|... chooses
# another build of PyTorch than the one for the CPU (see README.md).
export INSTALLER TORCH_BACKEND
# Packages are installed without bytecode, and every process would compile what it imports again.
unexport PYTHONDONTWRITEBYTECODE

$(VENV)/uv.ready: requirements/uv.txt
	@echo "setting up $(VENV): Python packages, the CDK with its Node, PyTorch for the CPU (once)"
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --disable-pip-version-check --quiet --require-hashes -r $<
	@touch $@

# Each command installs what it needs, and no more.
$(VENV)/%.ready: requirements/%.txt tools/packages.py $(VENV)/uv.ready
	$(BIN)/python tools/packages.py install $*
	@touch $@

lock: $(VENV)/uv.ready ## write requirements/*.txt from pyproject.toml, with the hash of every package file
	$(BIN)/python tools/packages.py lock

setup: $(VENV)/demo.ready ## .venv with the command `rerail`, and nothing else

# The script of hf imports Hugging Face's packages, which are among those of the tests.
demo: $(VENV)/demo.ready $(if $(filter hf,$(SCENARIO)),$(VENV)/test.ready) ## train a model on this machine, break it, watch it recover (SCENARIO=crash|bug|spike|stall|...)
	$(BIN)/rerail demo --scenario $(SCENARIO)

test: $(VENV)/test.ready ## the whole test suite
	$(BIN)/python -m tools.suites

test-load: $(VENV)/test.ready ## a demo beside six busy loops
	$(BIN)/python -m pytest tests/demo -m "load and not rehearsal"

test-fast: $(VENV)/test.ready ## the tests that start no process, for every save
	$(BIN)/python -m pytest tests -m "not slow" -n 2 --dist worksteal

browser: $(VENV)/test.ready ## the browser that the report is tested in: this machine's, or one fetched into .local
	$(BIN)/python -m tools.browser

image-test: $(VENV)/test.ready ## build the training image without Docker and run it as SageMaker would (3 minutes, then 30 s)
	$(BIN)/python -m tools.image_test

test-airflow: $(VENV)/test.ready $(VENV)/airflow.ready ## the Airflow package in an environment of its own, with the local AWS (2 minutes)
	$(BIN)/python -m uv pip install --quiet --python $(VENV)/airflow --no-deps --no-build-isolation --editable integrations/airflow
	$(VENV)/airflow/bin/python -m pytest integrations/airflow/tests

rehearse: $(VENV)/test.ready ## every demo scenario, and a small soak
	$(BIN)/python -m pytest tests/demo -v -m "not load" -n 2

check: $(VENV)/check.ready ## linter, formatter, type checker, linter of the Dockerfile
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/hadolint container/Dockerfile

audit: $(VENV)/audit.ready $(VENV)/checkov.ready ## templates, weaknesses, secrets, licences
	@mkdir -p .local
	$(BIN)/bandit -c pyproject.toml -q -r $(PROGRAMS) 2> .local/bandit.log || { cat .local/bandit.log; exit 1; }
	$(BIN)/python -m tools.secret_scan
	$(BIN)/python -m tools.sbom
	$(BIN)/python -m tools.template_audit

audit-online: $(VENV)/audit.ready ## known vulnerabilities of all packages; it needs the internet (AUDIT="--ignore-vuln ID")
	$(BIN)/python -m tools.audit_online $(AUDIT)

release: $(VENV)/test.ready $(VENV)/audit.ready ## wheels, source distributions, template without the CDK, SBOM, checksums, into .local/release
	$(BIN)/python -m pytest tests/tools -m rehearsal
	$(BIN)/python -m tools.release

sbom: $(VENV)/audit.ready ## bills of materials (CycloneDX) of what is shipped and what is installed, into .local/sbom
	$(BIN)/python -m tools.sbom
	$(BIN)/cyclonedx-py environment $(BIN)/python --output-file .local/sbom/development.cdx.json

# The long proofs, of which `make test` plays small versions; docs/proof.md has what they measured.
proof: $(VENV)/test.ready ## roles, a million bad inputs, scale, speed, the soak and the Airflow package (over an hour)
	$(BIN)/python -m pytest tests/deployed -m rehearsal -s
	$(BIN)/python -m pytest tests/demo -m "load and rehearsal"
	$(BIN)/python -m pytest tests/container tests/tools -m rehearsal
	RERAIL_INPUTS=all $(BIN)/python -m pytest tests/bad_input tests/aws/test_answers.py tests/core tests/detectors -n auto
	$(BIN)/python -m bench.scale
	$(BIN)/python -m bench.speed
	$(BIN)/python -m bench.soak
	$(MAKE) test-airflow

mutants: $(VENV)/mutants.ready ## small changes of the code that decides, each of which a test must notice (hours; ARGS="--sample 50")
	$(BIN)/python -m tools.mutants $(ARGS)

soak: $(VENV)/test.ready ## a small GPT through 40 random faults, beside undisturbed twins (15 minutes; ARGS="--seed 7")
	$(BIN)/python -m bench.soak $(ARGS)

bench: $(VENV)/test.ready ## our detectors beside published rules, on real training logs
	$(BIN)/python -m bench.detection --floor bench/floor.json
	$(BIN)/python -m bench.detection --corpus bench/corpus_more --split tune --floor bench/floor_more.json
	$(BIN)/python -m bench.invariance --logs 4 --floor bench/invariance_floor.json
	$(BIN)/python -m bench.layouts

bench-training: $(VENV)/test.ready ## saves, agent, stragglers, bubbles, as ratios measured in one run (half an hour)
	$(BIN)/python -m bench.saving
	$(BIN)/python -m bench.agent
	$(BIN)/python -m bench.stragglers
	$(BIN)/python -m bench.bubbles

bench-goodput: $(VENV)/test.ready ## months of simulated fleets by the real decisions: goodput, dollars, signals a minute (20 minutes)
	$(BIN)/python -m bench.goodput --page docs/goodput.md

format: $(VENV)/check.ready ## apply the linter's and the formatter's fixes
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

docs: $(VENV)/docs.ready ## the documentation as a site, into .local/site
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

docs-serve: $(VENV)/docs.ready ## the same at http://127.0.0.1:8000, rebuilt whenever a page changes
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs serve --dev-addr 127.0.0.1:8000

synth: $(VENV)/demo.ready ## the CloudFormation templates, into cdk.out (ARGS="-c trainingRoleArns=...")
	$(if $(ARGS),$(CDK) synth --quiet $(ARGS),$(BIN)/python app.py)

deploy: $(VENV)/demo.ready ## look, ask, then deploy into the account of your AWS credentials (ARGS="--profile P --region R")
	$(BIN)/rerail deploy $(ARGS)

destroy: $(VENV)/demo.ready ## take the stack away; runs, mail, reports, logs and the key stay
	$(BIN)/rerail destroy $(ARGS)

cdk: $(VENV)/demo.ready ## the CDK's own command line, for what `make deploy` does not do (ARGS="diff Rerail")
	$(CDK) $(ARGS)

clean: ## remove what the other targets made
	rm -rf $(VENV) .local cdk.out .pytest_cache .mypy_cache .ruff_cache .hypothesis *.egg-info
