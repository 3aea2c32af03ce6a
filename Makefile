# A virtual environment of the project's own; `make demo` and `make test` make it if needed.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/installed
DEMO := runs/demo

.PHONY: demo test lint clean

demo: $(INSTALLED)
	$(BIN)/python -m scripts.train --recipe digits --set run.folder=$(DEMO) --resume
	@echo
	@echo "In a new process, from $(DEMO)/final:"
	$(BIN)/python -m scripts.predict $(DEMO)/final $(DEMO)/examples/*.png
	@echo
	@echo "The names of the pictures end with what they are. To look at: $(DEMO)/curves.png, $(DEMO)/predictions.png, $(DEMO)/metrics.jsonl"

test: $(INSTALLED)
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2

lint: $(INSTALLED)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

$(INSTALLED): pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --editable ".[dev]"
	touch $(INSTALLED)

clean:
	rm -rf $(VENV) $(DEMO)
