"""What sentence-transformers says about pooling in a folder, in its older and its newer form."""

import json

import pytest

from ubjax.loaders.hf_folder import FolderError, HFFolder
from ubjax.loaders.hf_pooling import Prompts, read_pooling, read_prompts
from ubjax.pooling import Pooling

OLD, NEW = "sentence_transformers.models.", "sentence_transformers.sentence_transformer.modules.pooling."


@pytest.fixture
def folder(tmp_path):
    """A folder of which nothing but its files is looked at."""
    opened = HFFolder.__new__(HFFolder)
    opened.path = tmp_path
    return opened


def write(folder, pooling, *, normalize=False, prefix=OLD, path="1_Pooling", more=()):
    (folder.path / "1_Pooling").mkdir(exist_ok=True)
    (folder.path / "1_Pooling" / "config.json").write_text(json.dumps(pooling), "utf-8")
    modules = [
        {"type": f"{prefix}Transformer", "path": ""},
        {"type": f"{prefix}Pooling", "path": path},
        *more,
    ]
    modules += [{"type": f"{prefix}Normalize", "path": "2_Normalize"}] if normalize else []
    (folder.path / "modules.json").write_text(json.dumps(modules), "utf-8")


def test_older_and_newer_settings(folder):
    assert read_pooling(folder) is None
    write(folder, {"pooling_mode_cls_token": False, "pooling_mode_mean_tokens": True}, normalize=True)
    assert read_pooling(folder) == Pooling(kind="mean", normalize=True)
    write(folder, {"pooling_mode_cls_token": True, "pooling_mode_max_tokens": False})
    assert read_pooling(folder) == Pooling(kind="cls", normalize=False)
    for mode, kind in (("mean", "mean"), ("cls", "cls"), ("lasttoken", "last")):
        write(folder, {"pooling_mode": mode, "include_prompt": True}, prefix=NEW)
        assert read_pooling(folder) == Pooling(kind=kind)


@pytest.mark.parametrize(
    ("pooling", "options", "words"),
    [
        ({"pooling_mode": "max"}, {}, "asks for the pooling 'max', one of cls, mean, lasttoken is needed"),
        ({"pooling_mode_max_tokens": True}, {}, "asks for the pooling 'pooling_mode_max_tokens', one of"),
        ({"pooling_mode": ["cls", "mean"]}, {}, "asks for the pooling .'cls', 'mean'., one of"),
        ({}, {}, "asks for the pooling .., one of"),
        ({}, {"path": "../1_Pooling"}, "names the path '../1_Pooling', one inside the folder is needed"),
        ({}, {"path": "/etc"}, "names the path '/etc', one inside the folder is needed"),
        ({}, {"path": "2_Pooling"}, "there is no such file"),
        (
            {"pooling_mode": "cls"},
            {"more": [{"type": f"{OLD}Dense"}]},
            "modules.json: has the module 'Dense', which is not supported: Transformer, Pooling and Normalize are",
        ),
        (
            {"pooling_mode": "cls"},
            {"more": [5]},
            "has the module 5, which is not supported",
        ),
    ],
)
def test_what_is_refused(folder, pooling, options, words):
    write(folder, pooling, **options)
    with pytest.raises(FolderError, match=words):
        read_pooling(folder)
    (folder.path / "modules.json").write_text("{}", "utf-8")
    with pytest.raises(FolderError, match=r"modules\.json: it is dict, a list is needed"):
        read_pooling(folder)


@pytest.mark.parametrize(
    ("names", "words"),
    [
        ([], "has the modules none; Transformer, Pooling and perhaps Normalize are needed"),
        (["Pooling"], "has the modules Pooling; Transformer, Pooling"),
        (["Transformer"], "has the modules Transformer; "),
        (["Transformer", "Normalize", "Pooling"], "has the modules Transformer, Normalize, Pooling; "),
        (["Transformer", "Pooling", "Pooling"], "has the modules Transformer, Pooling, Pooling; "),
    ],
)
def test_modules_stand_in_their_order(folder, names, words):
    write(folder, {"pooling_mode": "cls"})
    modules = [{"type": OLD + name, "path": "1_Pooling" if name == "Pooling" else ""} for name in names]
    (folder.path / "modules.json").write_text(json.dumps(modules), "utf-8")
    with pytest.raises(FolderError, match=words):
        read_pooling(folder)


def test_a_model_in_a_folder_of_its_own_is_refused(folder):
    write(folder, {"pooling_mode": "cls"})
    path = folder.path / "modules.json"
    path.write_text(path.read_text("utf-8").replace('"path": ""', '"path": "0_Transformer"'), "utf-8")
    with pytest.raises(FolderError, match="has the model in '0_Transformer', one in the folder itself"):
        read_pooling(folder)


def write_prompts(folder, **settings):
    (folder.path / "config_sentence_transformers.json").write_text(json.dumps(settings), "utf-8")


def test_prompts(folder):
    assert read_prompts(folder) == Prompts(texts={})
    write_prompts(folder, prompts={"query": "q: ", "document": ""}, default_prompt_name="query")
    assert read_prompts(folder) == Prompts(texts={"query": "q: ", "document": ""}, default="query")
    write_prompts(folder, prompts=None, default_prompt_name=None, similarity_fn_name="cosine")
    assert read_prompts(folder) == Prompts(texts={})


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"prompts": ["q: "]}, "its prompts are not texts by name, such are needed"),
        ({"prompts": {"query": 5}}, "its prompts are not texts by name"),
        (
            {"default_prompt_name": "query"},
            "its default_prompt_name is 'query', the name of a prompt is needed",
        ),
        (
            {"prompts": {"query": "q"}, "default_prompt_name": ["query"]},
            "its default_prompt_name is .'query'.",
        ),
    ],
)
def test_prompts_that_are_refused(folder, settings, words):
    write_prompts(folder, **settings)
    with pytest.raises(FolderError, match=words):
        read_prompts(folder)


def test_prompts_that_are_left_out_of_the_pooling_are_refused(folder):
    write(folder, {"pooling_mode": "mean", "include_prompt": False})
    write_prompts(folder, prompts={"query": ""})
    assert read_pooling(folder) == Pooling(kind="mean")
    write_prompts(folder, prompts={"query": "q: "})
    with pytest.raises(
        FolderError, match=r"leaves prompts out of the pooling \(include_prompt\), which is not"
    ):
        read_pooling(folder)
