import numpy as np
import pytest

from tests.loaders.tiny_gguf import HYPER, VOCAB, llama_tensors, vocabulary_fields, write_gguf
from ubjax.loaders.find import find_model
from ubjax.loaders.gguf import GGUFError, open_gguf
from ubjax.loaders.hyperparameters import hyperparameters


@pytest.fixture
def read(tmp_path):
    def read(architecture="llama", n_blocks=2, **changes):
        fields = {key: value for key, value in {**HYPER, **changes}.items() if value is not None}
        fields = {key.replace("llama.", f"{architecture}."): value for key, value in fields.items()}
        tensors = llama_tensors(np.random.default_rng(0), n_blocks)
        path = write_gguf(tmp_path / "a.gguf", fields, tensors, architecture)
        return hyperparameters(open_gguf(path))

    return read


def test_defaults(read):
    assert read(**{"llama.attention.head_count_kv": None}) == {
        "architecture": "llama",
        "block_count": 2,
        "context_length": 64,
        "embedding_length": 12,
        "feed_forward_length": 16,
        "head_count": 3,
        "head_count_kv": 3,
        "key_length": 4,
        "value_length": 4,
        "rope_dimension_count": 4,
        "rope_dimension_sections": (),
        "rope_freq_base": 10000.0,
        "rope_freq_base_swa": None,
        "layer_norm_rms_epsilon": pytest.approx(1e-5),
        "rope_scaling": None,
        "sliding_window": 0,
        "sliding_window_layers": (),
        "attention_scale": None,
        "attn_logit_softcapping": None,
        "final_logit_softcapping": None,
        "vocab_size": VOCAB,
        "tie_embeddings": True,
        "optional_tensors": (),
    }


def test_given_values_come_before_defaults(read):
    hyper = read(
        **{
            "llama.attention.key_length": 8,
            "llama.attention.value_length": 6,
            "llama.rope.dimension_count": 2,
            "llama.rope.freq_base": 5e5,
        }
    )
    assert (hyper["key_length"], hyper["value_length"], hyper["rope_dimension_count"]) == (8, 6, 2)
    assert hyper["rope_freq_base"] == 500000.0


@pytest.mark.parametrize(
    ("keys", "expected"),
    [
        ({"rope.scaling.type": "none", "rope.scaling.factor": 4.0}, None),
        ({"rope.scaling.type": "linear"}, None),
        ({"rope.scaling.factor": 4.0}, {"type": "linear", "factor": 4.0}),
        ({"rope.scale_linear": 2.0}, {"type": "linear", "factor": 2.0}),
        (
            {
                "rope.scaling.type": "yarn",
                "rope.scaling.factor": 4.0,
                "rope.scaling.original_context_length": 32,
                "rope.scaling.finetuned": True,
            },
            {"type": "yarn", "factor": 4.0, "original_context_length": 32, "finetuned": True},
        ),
    ],
)
def test_rope_scaling(read, keys, expected):
    assert read(**{f"llama.{name}": value for name, value in keys.items()})["rope_scaling"] == expected


WINDOWS = [
    ("llama", {"sliding_window": 8}, (True, True)),
    ("llama", {"sliding_window": 0}, ()),
    ("llama", {"sliding_window": 8, "sliding_window_pattern": 2}, (True, False)),
    ("llama", {"sliding_window": 8, "sliding_window_pattern": 1}, (False, False)),
    ("phi3", {"sliding_window": 8, "sliding_window_pattern": [False, True]}, (False, True)),
    ("gemma2", {"sliding_window": 8}, (True, False)),
    ("gemma3", {"sliding_window": 8}, (True, True)),
    ("gemma3", {}, ()),
]


@pytest.mark.parametrize(("architecture", "keys", "layers"), WINDOWS)
def test_windows(read, architecture, keys, layers):
    hyper = read(architecture, **{f"llama.attention.{name}": value for name, value in keys.items()})
    assert hyper["sliding_window_layers"] == layers
    assert hyper["sliding_window"] == (8 if layers else 0)


def test_what_the_gemmas_have_beside(read):
    def beside(architecture, **keys):
        hyper = read(architecture, **{f"llama.{name}": value for name, value in keys.items()})
        names = ("rope_freq_base_swa", "attention_scale", "attn_logit_softcapping", "final_logit_softcapping")
        return hyper["sliding_window"], *(hyper[name] for name in names)

    assert beside("gemma2") == (4096, None, None, 50.0, 30.0)
    assert beside("gemma3") == (0, 10000.0, None, None, None)
    keys = {"rope.freq_base_swa": 500.0, "attention.scale": 0.25}
    caps = {"attn_logit_softcapping": 20.0, "final_logit_softcapping": 10.0}
    assert beside("gemma2", **keys, **caps) == (4096, 500.0, 0.25, 20.0, 10.0)
    assert beside("qwen3", **keys) == (0, 500.0, 0.25, None, None)


def test_sections_of_several_positions(read):
    def sections(value, architecture="qwen2vl"):
        return read(architecture, **{"llama.rope.dimension_sections": value})["rope_dimension_sections"]

    assert sections([1, 1, 0, 0]) == (1, 1, 0, 0)
    assert sections([1, 1, 0, 0], "qwen2") == ()
    with pytest.raises(
        GGUFError, match=r"qwen2vl.rope.dimension_sections holds .*, numbers of pairs are needed"
    ):
        sections([1, -1, 2, 0])
    with pytest.raises(GGUFError, match=r"the metadata key 'qwen2vl.*' is missing"):
        read("qwen2vl")


@pytest.mark.parametrize(("architecture", "n_blocks"), [("gemma2", 46), ("gemma3", 62)])
def test_the_gemmas_of_27_billion_scale_by_the_width_of_the_model(read, architecture, n_blocks):
    sizes = {"llama.block_count": n_blocks, "llama.attention.key_length": 8}
    assert read(architecture, n_blocks, **sizes)["attention_scale"] == 0.5  # 12 // 3 values for each head


def test_long_and_short_factors_mean_longrope(tmp_path):
    tensors = llama_tensors(np.random.default_rng(0)) | {"rope_factors_long.weight": np.ones(2, np.float32)}
    scaling = hyperparameters(open_gguf(write_gguf(tmp_path / "a.gguf", HYPER, tensors)))["rope_scaling"]
    assert scaling == {"type": "longrope"}


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("block_count", None, "the metadata key 'llama.block_count' is missing, int is needed"),
        ("block_count", "two", "the metadata key 'llama.block_count' is the str 'two', int is needed"),
        ("block_count", 0, "the metadata key 'llama.block_count' is 0, 1 to 2147483647 is needed"),
        (
            "context_length",
            2**31,
            "the metadata key 'llama.context_length' is 2147483648, 1 to 2147483647 is needed",
        ),
        (
            "attention.head_count",
            [3, 3],
            "'llama.attention.head_count' is an array of 2 values, int is needed",
        ),
        ("attention.head_count", 13, "13 heads do not fit an embedding_length of 12"),
        ("attention.head_count_kv", 2, "3 heads cannot share 2 key heads, a divisor is needed"),
        (
            "attention.layer_norm_rms_epsilon",
            None,
            "'llama.attention.layer_norm_rms_epsilon' is missing, float is",
        ),
        ("rope.freq_base", 0.0, "'llama.rope.freq_base' is 0.0, a finite number above 0 is needed"),
        ("rope.freq_base", float("nan"), "'llama.rope.freq_base' is nan, a finite number above 0 is needed"),
        (
            "rope.scaling.factor",
            float("inf"),
            "'llama.rope.scaling.factor' is inf, a finite number above 0 is needed",
        ),
        (
            "rope.dimension_count",
            3,
            "rope.dimension_count is 3, an even number up to the key length 4 is needed",
        ),
        (
            "rope.dimension_count",
            6,
            "rope.dimension_count is 6, an even number up to the key length 4 is needed",
        ),
        (
            "attention.sliding_window_pattern",
            [True],
            r"sliding_window_pattern has 1 values, 2 \(one a block\) are needed",
        ),
        (
            "attention.sliding_window_pattern",
            ["a", "b"],
            "sliding_window_pattern holds 'a', flags are needed",
        ),
        ("attention.sliding_window", "8", "'llama.attention.sliding_window' is the str '8', int is needed"),
        (
            "final_logit_softcapping",
            -2.0,
            "'llama.final_logit_softcapping' is -2.0, a finite number above 0 is",
        ),
        ("block_count", 2**31 - 1, "llama.block_count is 2147483647, and there are tensors of 2 blocks"),
        ("expert_count", 8, "llama.expert_count is 8: mixtures of experts are not supported"),
    ],
)
def test_refusals_name_the_key(read, name, value, message):
    window = {"llama.attention.sliding_window": 8} if "pattern" in name else {}
    with pytest.raises(GGUFError, match=f"a.gguf: .*{message}"):
        read(**window, **{f"llama.{name}": value})


def test_refusals_of_the_file(read, tmp_path):
    with pytest.raises(
        GGUFError, match=r"the architecture 'gptneox' is not supported, one of llama, qwen2, .* is needed$"
    ):
        read(architecture="gptneox")
    with pytest.raises(GGUFError, match=r"this is one of 3 parts of a model, a whole file is needed$"):
        read(**{"split.count": 3})
    with pytest.raises(
        GGUFError, match=r"token_embd.weight has 10 rows, one for each of the 2 tokens is needed$"
    ):
        read(**vocabulary_fields("gpt2", ["a", "b"]))
    with pytest.raises(GGUFError, match=r"there is no tensor 'token_embd.weight'$"):
        hyperparameters(open_gguf(write_gguf(tmp_path / "a.gguf", HYPER, {})))


@pytest.mark.slow
def test_smollm2():
    assert hyperparameters(open_gguf(find_model("smollm2"))) == {
        "architecture": "llama",
        "block_count": 30,
        "context_length": 8192,
        "embedding_length": 576,
        "feed_forward_length": 1536,
        "head_count": 9,
        "head_count_kv": 3,
        "key_length": 64,
        "value_length": 64,
        "rope_dimension_count": 64,
        "rope_dimension_sections": (),
        "rope_freq_base": 100000.0,
        "rope_freq_base_swa": None,
        "layer_norm_rms_epsilon": pytest.approx(1e-5),
        "rope_scaling": None,
        "sliding_window": 0,
        "sliding_window_layers": (),
        "attention_scale": None,
        "attn_logit_softcapping": None,
        "final_logit_softcapping": None,
        "vocab_size": 49152,
        "tie_embeddings": True,
        "optional_tensors": (),
    }
