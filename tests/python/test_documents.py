"""The examples of docs/python.md run, and it names everything that the package exports."""
import pathlib
import re

import pytest

import lowkey

PAGE = pathlib.Path(__file__).resolve().parents[2] / "docs" / "python.md"
EXAMPLES = re.findall(r"^```python\n(.*?)^```$", PAGE.read_text(encoding="utf-8"), re.M | re.S)


@pytest.mark.parametrize("number", range(len(EXAMPLES)))
def test_example(number, chat_path, tmp_path, monkeypatch, capsys):
    if "lm_eval" in EXAMPLES[number]:
        pytest.importorskip("lm_eval")
    (tmp_path / "model.gguf").symlink_to(chat_path)
    (tmp_path / "book.txt").write_text("It was a bright cold day. " * 200, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    exec(compile(EXAMPLES[number], f"example {number + 1}", "exec"), {})
    assert capsys.readouterr().out


def test_page_names_everything():
    page = PAGE.read_text(encoding="utf-8")
    missing = [name for name in lowkey.__all__ if not re.search(rf"\b{name}\b", page)]
    assert not missing


def test_there_are_examples():
    assert len(EXAMPLES) >= 3
