"""What sentence-transformers says about pooling in a folder, in its older and its newer form."""

import json

import pytest

from ubjax.loaders.hf_folder import FolderError, HFFolder
from ubjax.loaders.hf_pooling import read_pooling
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
            "has the module 'Dense', Transformer, Pool",
        ),
        (
            {"pooling_mode": "cls"},
            {"more": [5]},
            "has the module 5, Transformer, Pooling and Normalize are known",
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
