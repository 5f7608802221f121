# The same commands as scripts/ and CI.
SHELL := bash
.PHONY: check test demo format
check test:
	scripts/test
demo:
	scripts/demo
format:
	. scripts/setup.sh && ruff check --fix . && ruff format .
