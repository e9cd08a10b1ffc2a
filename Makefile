# `make demo` and `make test` need only Python ≥ 3.11 and make; everything else goes into .venv.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# Where it is set (containers, clusters) every process compiles all modules again: 3.4 s a start instead of 1.2.
unexport PYTHONDONTWRITEBYTECODE
INSTALLED := $(VENV)/.installed

.PHONY: demo test validate validate-published validate-steps validate-memory validate-fabrics validate-prior validate-run validate-run-modern validate-plans validate-page step-errors step-spread scoreboard lint types imports unit slow verdicts attack mutate tools test-slurm test-browser pictures docs site dist bench-store bench-commons bench-train bench-runtime bench-start bench-footprint bench-serve bench-parse bench-traces bench-sampling bench-gloo bench-caches bench-substitutes bench-hardware bench-explore datasets stacks clean

demo: $(INSTALLED)
	$(BIN)/kernelcast demo

# Types are checked while tests wait for processes that they started.
test: lint
	$(MAKE) --jobs=2 unit types imports

# constraints.txt pins torch to a version whose CPU build is enough: without it, pip may bring gigabytes of CUDA.
$(INSTALLED): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt --editable '.[all,dev]'
	mkdir -p $(VENV)/typing && ln -sfn "$(CURDIR)" $(VENV)/typing/kernelcast
	touch $@

lint: $(INSTALLED)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/python -m tests.lint.banned_words
	@for patch in tests/contributing/*.patch; do git apply --check $$patch || exit 1; done

# mypy cannot follow the editable install, so it finds the package through a link that is named like it.
types: $(INSTALLED)
	MYPYPATH=$(VENV)/typing $(BIN)/mypy -p kernelcast.runtime -p kernelcast.walltime -p kernelcast.plan -p kernelcast.store -p kernelcast.train \
	  -p kernelcast.collector -p kernelcast.sampling -p kernelcast.validate \
	  -p kernelcast.demo -p kernelcast.explore -p kernelcast.serve -p kernelcast.cli

imports: $(INSTALLED)
	$(BIN)/lint-imports

# Some tests run these programs for real; a bare Debian machine gets them.
tools:
	@for pair in ssh-keygen:openssh-client curl:curl openssl:openssl nginx:nginx-light; do PATH=$$PATH:/usr/sbin command -v $${pair%:*} > /dev/null || { \
	  echo "installing $${pair#*:}"; apt-get update -qq && apt-get install -qq -y --no-install-recommends $${pair#*:}; } || exit 1; \
	done

unit: $(INSTALLED) tools
	$(BIN)/pytest -m 'not slow and not quiet and not slurm and not browser' -n 2 --dist worksteal

slow: $(INSTALLED) tools
	$(BIN)/pytest -m slow -n 2 --dist loadfile --no-loadscope-reorder

# What `compare` says of real trainings with a known change: on a machine without other work.
verdicts: $(INSTALLED)
	$(BIN)/pytest -m quiet

# Hostile files and clients, loopback only: a quarter of an hour. ATTACK='--write docs/trust.md' keeps the counts.
attack: $(INSTALLED)
	$(BIN)/python -m tests.attacks.run $(ATTACK)

# cosmic-ray changes single tokens of the source, and is never depended on: it gets an environment of its own.
# MUTANTS of each path that MUTATE names, of every package without one.
MUTATE_VENV := .venv-mutate
MUTANTS ?= 60
SEED ?= 1

$(MUTATE_VENV)/.installed:
	$(PYTHON) -m venv $(MUTATE_VENV)
	$(MUTATE_VENV)/bin/python -m pip install --quiet --disable-pip-version-check 'cosmic-ray>=8.7,<9'
	touch $@

mutate: $(INSTALLED) $(MUTATE_VENV)/.installed
	nice -n 19 $(BIN)/python -m tests.mutants.run --tool $(MUTATE_VENV) --mutants $(MUTANTS) --seed $(SEED) $(MUTATE)

# Needs root and apt-get; elsewhere it says so and does nothing.
test-slurm: $(INSTALLED)
	tests/integrations/slurm/run.sh $(BIN)/pytest

# Chromium comes from Debian, with apt-get and root; elsewhere one that is installed is taken.
test-browser: $(INSTALLED) chromium
	$(BIN)/pytest -m browser tests/explore/browser

.PHONY: chromium
chromium:
	@command -v chromium > /dev/null || command -v google-chrome > /dev/null || { \
	  echo "installing chromium"; apt-get update -qq && apt-get install -qq -y --no-install-recommends chromium; }

# Pictures of pages in docs/: the explorer, a predicted step, a training's report, a database (PICTURES=predict: some).
pictures: $(INSTALLED) chromium
	$(BIN)/python docs/generate_pictures.py $(PICTURES)

docs: $(INSTALLED)
	$(BIN)/python docs/generate_fabrics.py
	$(BIN)/python docs/generate_hardware.py
	$(BIN)/python docs/generate_models.py
	$(BIN)/python docs/generate_sql.py
	$(BIN)/python docs/generate_schema.py
	$(BIN)/python docs/generate_fields.py
	$(BIN)/python docs/generate_json.py
	$(BIN)/python docs/generate_output.py
	$(BIN)/python docs/generate_readme.py
	$(BIN)/python docs/generate_commands.py

# Source archive and wheel into dist/, byte for byte the same from the same files.
dist: $(INSTALLED)
	$(BIN)/python release/dist.py dist

# The documentation as a site, which works without a network: open site/index.html.
site: $(INSTALLED)
	test -x $(BIN)/zensical || $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[docs]'
	$(BIN)/python docs/build_site.py

bench-store: $(INSTALLED)
	$(BIN)/python benchmarks/bench_store.py

bench-commons: $(INSTALLED)
	$(BIN)/python benchmarks/bench_commons.py

# The method's authors' data files: where they lie is set by PUBLISHED=FOLDER, what is done by BENCH_TRAIN=--write.
PUBLISHED ?= ../shared/data/estimate-train-time/Perlmutter

# Predicted beside measured steps: results into docs/validation/, and docs/validation.md of them. Takes minutes of
# fitting, and half an hour of measuring, during which the machine must do nothing else. What was measured and fitted is
# kept in VALIDATED and taken over; without that folder all of it is done anew.
VALIDATED := $(VENV)/validated
KEEP := $(BIN)/python docs/keep_result.py

validate: validate-published validate-steps validate-memory validate-fabrics validate-prior validate-run validate-run-modern validate-page

validate-published: $(INSTALLED)
	@mkdir -p $(VALIDATED)
	@if [ -d "$(PUBLISHED)" ]; then set -ex; \
	  $(KEEP) published validate published "$(PUBLISHED)" --json -o $(VALIDATED)/published.kcast \
	    $$(test -f $(VALIDATED)/published.kcast && echo --from $(VALIDATED)/published.kcast); \
	  $(KEEP) published_vista validate published "$(PUBLISHED)/../Vista" --json -o $(VALIDATED)/vista.kcast \
	    $$(test -f $(VALIDATED)/vista.kcast && echo --from $(VALIDATED)/vista.kcast); \
	  for timeline in closed-form simulate; do \
	    $(KEEP) calibration-$$timeline calibrate --bundle $(VALIDATED)/published.kcast \
	      --runs validate/perlmutter.toml --timeline $$timeline --json; \
	  done; \
	else echo "$(PUBLISHED): no such folder, the published table stays as it is"; fi

# Seconds: what ships, asked for the measured steps that ship.
validate-steps: $(INSTALLED)
	$(KEEP) steps validate steps --json
	$(KEEP) steps_options validate steps --effects --json

# Published rows of collectives: where they lie is set by FABRICS=FOLDER.
FABRICS ?= ../shared/data

# Memory of published steps: where they lie is set by MEASURED=FOLDER.
MEASURED ?= ../shared/data

validate-memory: $(INSTALLED)
	@if [ -d "$(MEASURED)" ]; then set -e; mkdir -p docs/validation/memory; $(KEEP) memory/cases validate memory "$(MEASURED)" --json; \
	  $(BIN)/python docs/generate_memory_validation.py "$(MEASURED)"; \
	else echo "$(MEASURED): no such folder, memory is not validated"; fi

validate-fabrics: $(INSTALLED)
	@mkdir -p $(VALIDATED)
	@if [ -d "$(FABRICS)" ]; then set -e; $(BIN)/kernelcast validate fabrics "$(FABRICS)"; \
	  $(BIN)/kernelcast validate fabrics "$(FABRICS)" --json > $(VALIDATED)/fabrics.json; \
	  $(BIN)/python docs/generate_fabrics.py $(VALIDATED)/fabrics.json; \
	else echo "$(FABRICS): no such folder, fabrics are not validated"; fi

# A GH200 from a few points and an A100, from the tables in datasets/; training the A100 takes ten minutes, once.
validate-prior: $(INSTALLED)
	@mkdir -p $(VALIDATED)
	for site in Perlmutter Vista; do test -f $(VALIDATED)/$$site.db || $(BIN)/kernelcast import estimate-train-time \
	  datasets/estimate-train-time/$$site --db $(VALIDATED)/$$site.db || exit 1; done
	test -f $(VALIDATED)/perlmutter.kcast || $(BIN)/kernelcast train --db $(VALIDATED)/Perlmutter.db -o $(VALIDATED)/perlmutter.kcast
	$(BIN)/kernelcast validate prior $(VALIDATED)/perlmutter.kcast $(VALIDATED)/Vista.db --points 1,2,3,5,8,10,15,20,30,40 \
	  --without flash_attention --without adam:first_stage --draws 10 --json > $(VALIDATED)/prior.json
	$(BIN)/python docs/generate_prior.py $(VALIDATED)/prior.json

validate-run: $(INSTALLED)
	@mkdir -p $(VALIDATED)
	$(BIN)/kernelcast collect compute --plan validate --procs-per-node 1,2 --db $(VALIDATED)/here.db
	$(BIN)/kernelcast collect comm --procs 2 --plan validate --db $(VALIDATED)/here.db
	$(BIN)/kernelcast train --db $(VALIDATED)/here.db -o $(VALIDATED)/here.kcast \
	  $$(test -f $(VALIDATED)/here.kcast && echo --from $(VALIDATED)/here.kcast)
	$(KEEP) run validate run --bundle $(VALIDATED)/here.kcast --db $(VALIDATED)/here.db --repetitions 3 --json

# Mixtures of experts and long sequences, over two processes.
validate-run-modern: $(INSTALLED)
	@mkdir -p $(VALIDATED)
	$(BIN)/kernelcast collect compute --plan modern --procs-per-node 1,2 --db $(VALIDATED)/modern.db
	$(BIN)/kernelcast collect comm --procs 2 --plan modern --db $(VALIDATED)/modern.db
	$(BIN)/kernelcast train --db $(VALIDATED)/modern.db -o $(VALIDATED)/modern.kcast \
	  $$(test -f $(VALIDATED)/modern.kcast && echo --from $(VALIDATED)/modern.kcast)
	$(KEEP) run_modern validate run --config modern --bundle $(VALIDATED)/modern.kcast \
	  --db $(VALIDATED)/modern.db --repetitions 3 --json

# What intervals of steps are drawn from: errors of the measured steps in validate/, by source.
step-errors: $(INSTALLED)
	$(BIN)/kernelcast validate errors -o runtime/shipped/step_errors.json

# How single steps of public MLPerf logs scatter, and how long they take to start.
step-spread: $(INSTALLED)
	$(BIN)/python datasets/step_spread.py

scoreboard: step-errors validate-steps
	@mkdir -p docs/validation/scoreboard
	$(KEEP) scoreboard/closed-form validate steps validate/perlmutter.toml validate/vista.toml --timeline closed-form --json
	$(KEEP) scoreboard/fsdp-composer stack fit validate/llm-foundry-a100-40gb.toml validate/llm-foundry-a100-80gb.toml --json
	$(KEEP) scoreboard/megatron-core stack fit validate/simumax-b200.toml --json
	$(KEEP) scoreboard/gpt-neox stack fit validate/perlmutter.toml validate/vista.toml --json
	$(BIN)/python docs/generate_scoreboard.py
	$(BIN)/python docs/generate_today.py --again

# Plans beside published runs.
validate-plans: $(INSTALLED)
	$(BIN)/kernelcast validate plans

validate-page: $(INSTALLED)
	$(BIN)/python docs/generate_validation.py

# Bundles that ship, from the tables in datasets/: ten minutes each.
datasets: $(INSTALLED)
	$(BIN)/python datasets/build.py
	$(BIN)/python datasets/transfers.py
	$(BIN)/python datasets/power.py
	$(BIN)/python datasets/sustained.py

# What software stacks do to sums of operators, fitted to the measured steps in validate/: a minute.
stacks: $(INSTALLED)
	$(BIN)/kernelcast stack fit validate/llm-foundry-a100-40gb.toml validate/llm-foundry-a100-80gb.toml \
	  --software "LLM Foundry (Composer), PyTorch FSDP (FULL_SHARD), Triton FlashAttention-1, AdamW" \
	  --kernel flash-1-triton -o runtime/shipped/stacks/fsdp-composer.toml
	$(BIN)/kernelcast stack fit validate/simumax-b200.toml -o runtime/shipped/stacks/megatron-core.toml

bench-hardware: $(INSTALLED)
	$(BIN)/python benchmarks/bench_hardware.py

bench-train: $(INSTALLED)
	$(BIN)/python benchmarks/bench_train.py "$(PUBLISHED)" $(BENCH_TRAIN)

# Adaptive against random sampling; writes docs/sampling.json, docs/sampling.png and the table in docs/few-points.md.
bench-sampling: $(INSTALLED)
	$(BIN)/python benchmarks/bench_sampling.py "$(PUBLISHED)"

# How far off substitutes are; BUNDLES are by default those that ship.
BUNDLES ?= runtime/shipped/bundles/*.kcast
bench-substitutes: $(INSTALLED)
	$(BIN)/python benchmarks/bench_substitutes.py $(BUNDLES)

bench-runtime: $(INSTALLED)
	$(BIN)/python benchmarks/bench_runtime.py --write

# From the start of each command; BASE=COMMIT measures that commit in the same run, REPEAT=N repetitions.
bench-start: $(INSTALLED)
	$(BIN)/python benchmarks/bench_start.py --write $(if $(BASE),--base $(BASE)) $(if $(REPEAT),--repeat $(REPEAT))

bench-footprint: $(INSTALLED)
	$(BIN)/python benchmarks/bench_footprint.py --write docs/deploy.md $(BENCH_FOOTPRINT)

# BENCH_SERVE=--write puts the table into docs/serve.md.
bench-serve: $(INSTALLED)
	$(BIN)/python benchmarks/bench_serve.py $(BENCH_SERVE)

# HolisticTraceAnalysis is compared with, never depended on: it gets an environment of its own.
HTA_VENV := .venv-hta
TRACES ?= ../shared/data/traces

$(HTA_VENV)/.installed:
	$(PYTHON) -m venv $(HTA_VENV)
	$(HTA_VENV)/bin/python -m pip install --quiet --disable-pip-version-check HolisticTraceAnalysis
	touch $@

# BENCH_PARSE=--write puts the table into docs/ingesting.md.
bench-parse: $(INSTALLED) $(HTA_VENV)/.installed
	$(BIN)/python benchmarks/bench_parse.py "$(TRACES)" --hta-python $(HTA_VENV)/bin/python $(BENCH_PARSE)

bench-traces: $(INSTALLED) $(HTA_VENV)/.installed
	$(BIN)/python benchmarks/bench_traces.py
	$(BIN)/python benchmarks/bench_traces.py --ranks 1 --steps 28000
	$(BIN)/python benchmarks/bench_traces.py --of $(wildcard $(TRACES)/*/control.json.gz)
	$(BIN)/python benchmarks/bench_trace_analysis.py $(wildcard $(TRACES)/*/control.json.gz $(TRACES)/*/nccl_data.json.gz \
	  $(TRACES)/*/test.json.gz $(TRACES)/*/h100*.json.gz) --hta-python $(HTA_VENV)/bin/python --write docs/trace-figures.md

# BENCH_EXPLORE=--write puts the table into docs/explore.md.
bench-explore: $(INSTALLED) chromium
	$(BIN)/python benchmarks/bench_explore.py $(BENCH_EXPLORE)

# What a CPU's caches keep of torch's own code (collector/measuring/cache_state.py).
bench-caches: $(INSTALLED)
	$(BIN)/python benchmarks/bench_caches.py

bench-gloo: $(INSTALLED)
	$(BIN)/python benchmarks/bench_gloo.py --write

clean:
	rm -rf $(VENV) $(HTA_VENV) $(MUTATE_VENV) build *.egg-info .mypy_cache .pytest_cache .ruff_cache .hypothesis .import_linter_cache
