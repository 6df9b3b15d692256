"""Models of these tests: small random ones, written by the tests' own programs."""
import os
import pathlib
import subprocess
import sys

import pytest

import lowkey

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests" / "serve"))


@pytest.fixture(scope="session")
def tiny_path(tmp_path_factory):
    """A random model without a chat template; its vocabulary has single bytes."""
    folder = tmp_path_factory.mktemp("models")
    program = pathlib.Path(os.environ["LOWKEY_BUILD"], "tests", "write_tiny_models")
    if not program.exists():
        pytest.skip("tests/write_tiny_models was not built")
    subprocess.run([program, folder], check=True, stdout=subprocess.DEVNULL)
    return folder / "llama.gguf"


@pytest.fixture(scope="session")
def chat_path(tmp_path_factory):
    """A random model with a tokenizer and a chat template."""
    import tiny_model

    path = tmp_path_factory.mktemp("chat") / "chat.gguf"
    tiny_model.write_model(str(path), n_ctx=4096)
    return path


@pytest.fixture(scope="session")
def model(chat_path):
    return lowkey.Model(chat_path, threads=1)


@pytest.fixture
def session(model):
    return lowkey.Session(model, "best-3", n_ctx=1024)


@pytest.fixture(scope="session")
def program():
    """The lowkey program."""
    path = os.environ.get("LOWKEY_BIN", "")
    if not os.access(path, os.X_OK):
        pytest.skip("the lowkey program was not built")
    return path
