"""A fixture of the tests of diffusers models."""

from pathlib import Path

import pytest

from tests.actors import tiny


@pytest.fixture(scope="session")
def root(tmp_path_factory) -> Path:
    """A folder with a tiny pipeline of every model; tests copy what they change."""
    root = tmp_path_factory.mktemp("tiny")
    for name in tiny.BUILDERS:
        tiny.save(name, root / name)
    return root
