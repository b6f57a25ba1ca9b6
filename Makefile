# Targets that need Python packages first set them up in .venv-2.21.
#
# make demo          trains and exports a small ALBERT from text, fills masks with
#                    the released model, and fine-tunes it, in build/demo
# make test          runs the fast tests, in a few minutes
# make slow-test     runs the tests that start processes, compile large programs
#                    or take long
# make extras-test   runs the tests that need PyTorch, TensorFlow Datasets, the TPU
#                    compiler, LiteRT or ONNX Runtime
# make extras        installs the packages that extras-test needs
# make bridge-test   passes the programs of the trainer through the TPU bridge of
#                    TensorFlow; also a part of test and slow-test
# make tpu-compile-test
#                    compiles a training step for TPUs with all optimizations, in
#                    minutes, and compares the program with that of before; not a
#                    part of test-all
# make tpu-wheel-test
#                    passes the programs of the trainer through the TPU bridge
#                    of tensorflow-tpu, which has the kernels for TPUs; sets up
#                    .venv-tpu
# make gpu-compile-test
#                    compiles the training step for NVIDIA's GPUs, without a GPU;
#                    sets up .venv-gpu, which downloads 700 MB more; not a part of
#                    test-all
# make newest-test   runs the tests of test and extras-test with the newest version
#                    of every package, in .venv-newest; PYTHON must be 3.12 or
#                    3.13
# make other-tests   runs slow-test and extras-test
# make test-all      runs test and other-tests, not tpu-wheel-test
# make lint          checks the style of the code
# make typecheck     checks the types of the code
# make docs          writes the tables of docs/ that the code knows, and the site of
#                    all pages and of the Python interface, build/site
# make lock          updates constraints/*.txt for changes of setup.py;
#                    UPGRADE=1 also selects newer versions
# make clean         removes all build results and environments
#
# TF=2.20 selects TensorFlow 2.20 (in .venv-2.20), TF=newest the newest
# packages, PYTHON=python3.12 another Python, PACKAGE=training the tests of one
# package.

TF ?= 2.21
PYTHON ?= python3

ifeq ($(filter 2.20 2.21 newest,$(TF)),)
  $(error TF must be 2.20, 2.21 or newest. Received: $(TF))
endif

VENV := .venv-$(TF)
BIN := $(VENV)/bin
CONSTRAINTS := constraints/$(patsubst 2.%,tensorflow-2.%,$(TF)).txt
# uv installs in a quarter of pip's time, but does not read pip's settings.
# --no-build-isolation makes it build this package with the locked versions.
INSTALL := $(BIN)/uv pip install --quiet --python $(BIN)/python \
    -c $(CONSTRAINTS) $(addprefix --find-links ,$(PIP_FIND_LINKS))
INSTALL_SELF := $(INSTALL) --no-build-isolation -e

# uv does not compile Python modules to bytecode. Container images often set this
# variable: then each process would compile TensorFlow's modules again, and take
# three times as long to start.
unexport PYTHONDONTWRITEBYTECODE

# Without this, TensorFlow prints messages about missing GPUs in the demo.
export TF_CPP_MIN_LOG_LEVEL ?= 3

.PHONY: help demo test slow-test extras extras-test other-tests bridge-test \
    tpu-compile-test tpu-wheel-test gpu-compile-test newest-test test-all lint typecheck docs lock clean

help:
	@sed -n '/^# make/,/^$$/s/^# \{0,1\}//p' Makefile

# --- set-up ------------------------------------------------------------------

define CHECK_PYTHON
import sys
if not (3, 11) <= sys.version_info[:2] <= (3, 13):
    sys.exit("Python must be 3.11, 3.12 or 3.13. Received: %d.%d. Name one,"
             " e.g. make PYTHON=python3.12" % sys.version_info[:2])
endef
export CHECK_PYTHON

$(VENV)/installed: setup.py $(CONSTRAINTS)
	@$(PYTHON) -c "$$CHECK_PYTHON"
	@echo "Setting up $(VENV), once: downloads about 600 MB."
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet uv
	# Built from source, by tools of its own.
	$(INSTALL) setuptools seqeval
	$(INSTALL_SELF) '.[cpu,test]'
	@touch $@

$(VENV)/installed-extras: $(VENV)/installed
	$(INSTALL_SELF) '.[cpu,test,interop,tfds,tpu-compile,jax,litert,onnx]'
	@touch $@

extras: $(VENV)/installed-extras

# --- checks ------------------------------------------------------------------

# As many workers as tests/conftest.py says; JOBS=0 runs the tests in one process.
JOBS ?= auto
EXTRAS := interop or tfds or tpu_compile or jax or edge
PYTEST := $(BIN)/python -m pytest -q -n $(JOBS) --dist worksteal
# A free worker takes the next file; tests/conftest.py has the order.
BY_FILE := --dist loadfile --no-loadscope-reorder

TESTS := $(if $(PACKAGE),tests/$(PACKAGE))

test: $(VENV)/installed
	$(PYTEST) $(TESTS) -m "not slow and not ($(EXTRAS))" $(PYTEST_ARGS)

slow-test: $(VENV)/installed
	$(PYTEST) $(BY_FILE) $(TESTS) -m "slow and not ($(EXTRAS))" $(PYTEST_ARGS)

.venv-gpu/installed: setup.py $(CONSTRAINTS)
	@$(PYTHON) -c "$$CHECK_PYTHON"
	$(PYTHON) -m venv .venv-gpu
	.venv-gpu/bin/python -m pip install --quiet uv
	.venv-gpu/bin/uv pip install --quiet --python .venv-gpu/bin/python \
	    -c $(CONSTRAINTS) -e '.[cpu,gpu-compile]' pytest pytest-xdist
	@touch $@

tpu-compile-test: $(VENV)/installed-extras
	$(PYTEST) tests/tpu -m "tpu_compile and by_hand" $(PYTEST_ARGS)

gpu-compile-test: .venv-gpu/installed
	.venv-gpu/bin/python -m pytest -q -m gpu_compile tests/tpu $(PYTEST_ARGS)

# Tests of a missing extra are skipped, so this checks for all of them.
define TEST_EXTRAS
	$(BIN)/python -c "import safetensors, torch, transformers; \
	    import tensorflow_datasets, jax, libtpu; \
	    import ai_edge_litert, onnxruntime, onnxscript"
	$(PYTEST) $(BY_FILE) $(TESTS) -m "($(1)) and not by_hand" $(PYTEST_ARGS)
endef

extras-test: $(VENV)/installed-extras
	$(call TEST_EXTRAS,$(EXTRAS))

# In one run, whose workers start once.
other-tests: $(VENV)/installed-extras
	$(call TEST_EXTRAS,slow or $(EXTRAS))

bridge-test: $(VENV)/installed
	$(PYTEST) tests/training/test_tpu_bridge.py $(PYTEST_ARGS)

TPU_BIN := .venv-tpu/bin

# The pins of libtpu and tensorflow are removed: they are for other extras.
# Packages of the extra `test` would install tensorflow over tensorflow-tpu.
.venv-tpu/installed: setup.py constraints/tensorflow-2.20.txt
	@$(PYTHON) -c "$$CHECK_PYTHON"
	$(PYTHON) -m venv .venv-tpu
	$(TPU_BIN)/python -m pip install --quiet uv
	sed -E '/^(libtpu|tensorflow)==/d' constraints/tensorflow-2.20.txt \
	    > .venv-tpu/constraints.txt
	$(TPU_BIN)/uv pip install --quiet --python $(TPU_BIN)/python \
	    -c .venv-tpu/constraints.txt -e '.[tpu]' \
	    pytest pytest-xdist hypothesis
	@touch $@

# Without a TPU, libtpu would query a metadata server for minutes.
tpu-wheel-test: .venv-tpu/installed
	TPU_SKIP_MDS_QUERY=1 $(TPU_BIN)/python -m pytest -q \
	    tests/training/test_tpu_bridge.py $(PYTEST_ARGS)

test-all: test other-tests

newest-test:
	$(MAKE) test TF=newest
	$(MAKE) extras-test TF=newest

lint: $(VENV)/installed
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

typecheck: $(VENV)/installed
	$(BIN)/mypy

docs: $(VENV)/installed
	$(BIN)/python docs/generate.py
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

# --- the demo ----------------------------------------------------------------

DEMO := build/demo
MINI := models/albert_mini_en
QUESTIONS := data_prep/sample_questions

# Each command reuses or continues the results of an interrupted demo.
demo: $(VENV)/installed
	@echo "1/4 makes a first model from the sample corpus, in six minutes"
	$(BIN)/python -m albert_tf.first_model --output_dir=$(DEMO)/first_model \
	    --input_file='data_prep/sample_corpus/*.txt.gz' --minutes=6 \
	    || test $$? = 3  # on a slow machine: worse than frequencies
	@echo "2/4 asks the released model for masked words,"
	test -e $(DEMO)/mini || $(BIN)/python -m albert_tf.convert_checkpoint \
	    --from=$(MINI) --to=$(DEMO)/mini
	test -e $(DEMO)/mini_saved_model || $(BIN)/python -m \
	    albert_tf.export_saved_model \
	    --run_dir=$(DEMO)/mini --export_dir=$(DEMO)/mini_saved_model
	$(BIN)/python -m albert_tf.predict \
	    --saved_model_dir=$(DEMO)/mini_saved_model \
	    --flagfile=configs/demo/masked.flags
	@echo "    and for the order of passages, each pair in order and swapped"
	$(BIN)/python -m albert_tf.predict \
	    --saved_model_dir=$(DEMO)/mini_saved_model \
	    --flagfile=configs/demo/passages.flags
	@echo "3/4 evaluates it on the questions of a bank's customers, and continues"
	@echo "    its pretraining on them"
	$(BIN)/python -m data_prep.build_tfrecords \
	    --input_file=$(QUESTIONS)/train.jsonl \
	    --spm_model_file=$(MINI)/spiece.model --output_dir=$(DEMO)/questions \
	    --max_seq_length=64 --max_predictions_per_seq=10 --ngram=1 \
	    --sentence_objective=nsp --masking=dynamic --dupe_factor=10 \
	    --packing=best_fit --num_shards=1 --holdout_fraction=0.05
	$(BIN)/python -m albert_tf.run_pretraining --mode=eval \
	    --flagfile=configs/pretrain/demo_questions.flags \
	    --sentence_objective=sop --eval_sentence_objective=nsp \
	    --output_dir=$(DEMO)/mini
	$(BIN)/python -m albert_tf.run_pretraining \
	    --flagfile=configs/pretrain/demo_questions.flags
	@echo "4/4 learns their 77 categories from ten examples of each, and compares"
	@echo "    it with the same training from random weights"
	$(BIN)/python -m benchmarks.finetune_banking77 \
	    --init_checkpoint=$(DEMO)/questions_run --work_dir=$(DEMO)/banking77 \
	    --examples_per_class=10 --num_train_steps=600 --num_runs=1
	@echo
	@echo "first model  $(DEMO)/first_model/index.html"
	@echo "released     models/albert_mini_en, exported to"
	@echo "             $(DEMO)/mini_saved_model, continued in $(DEMO)/questions_run"
	@echo "fine-tuned   $(DEMO)/banking77"

# --- upkeep ------------------------------------------------------------------

LOCK_EXTRAS := cpu gpu test interop tfds tpu-compile gpu-compile jax litert onnx

lock: lock-2.20 lock-2.21 lock-newest

lock-%: .venv-lock/installed
	@mkdir -p build/lock
	printf 'tensorflow==$*.*\ntorch==2.13.0\n' > build/lock/tensorflow-$*.in
	.venv-lock/bin/uv pip compile --quiet --universal --python-version 3.11 \
	    --custom-compile-command "make lock" $(if $(UPGRADE),--upgrade) \
	    setup.py $(addprefix --extra ,$(LOCK_EXTRAS)) \
	    -c build/lock/tensorflow-$*.in -o constraints/tensorflow-$*.txt

lock-newest: .venv-lock/installed
	.venv-lock/bin/uv pip compile --quiet --universal --python-version 3.13 \
	    --custom-compile-command "make lock" --upgrade \
	    setup.py $(addprefix --extra ,$(LOCK_EXTRAS)) -o constraints/newest.txt

.venv-lock/installed:
	@$(PYTHON) -c "$$CHECK_PYTHON"
	$(PYTHON) -m venv .venv-lock
	.venv-lock/bin/python -m pip install --quiet uv
	@touch $@

clean:
	rm -rf build .venv-2.20 .venv-2.21 .venv-newest .venv-tpu .venv-gpu .venv-lock albert_tf.egg-info
	rm -rf .hypothesis .mypy_cache .pytest_cache .ruff_cache
	find . -name __pycache__ -prune -exec rm -rf {} +
