"""Chat templates: the text they make, and what hostile ones can't do."""

import time

import pytest

from ubjax.loaders import Tokenizer, find_model, open_gguf
from ubjax.loaders.chat import render_chat

HELLO = [{"role": "user", "content": "x"}]
NESTING = "{% set x = namespace(a='a') %}{% for i in range(60) %}{% set x.a = [x.a, x.a] %}{% endfor %}"
DOUBLING = "{% set x = namespace(a='aa') %}{% for i in range(18) %}{% set x.a = x.a + x.a %}{% endfor %}"


def test_smollm2_speaks_chatml():
    tokenizer = Tokenizer.from_gguf(open_gguf(find_model("smollm2")))
    text = tokenizer.decode(tokenizer.encode_chat([{"role": "user", "content": "Hi"}]))
    assert text.endswith("<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n")
    turns = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Hi"},
        {"role": "assistant", "content": "Hello"},
    ]
    closed = tokenizer.decode(tokenizer.encode_chat(turns, add_generation_prompt=False))
    assert closed == (
        "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\nHello"
        "<|im_end|>\n"
    )


@pytest.mark.parametrize(
    ("template", "text"),
    [
        (
            "{{ bos_token }}{% for m in messages %}[{{ m.role | upper }}]{{ m['content'] }}{% endfor %}",
            "<s>[USER]x",
        ),
        ("{% if add_generation_prompt %}{{ 'go' ~ 1 ~ '\n' }}{% endif %}", "go1\n"),
        ("{{ messages | tojson }}", '[{"role": "user", "content": "x"}]'),
        ("{{ 'a-b'.split('-')[1] + 'aXa'.replace('X', '--') | trim }}", "ba--a"),
        ("{% for m in messages %}{% if loop.first %}{{ 2 * 3 % 4 }}{% break %}{% endif %}{% endfor %}", "2"),
        ("{{ ['a', 'b'] | join('+') }}{{ messages | map(attribute='role') | join }}", "a+buser"),
        ("{% for k, v in {'a': 1}.items() %}{{ k }}{{ v }}{% endfor %}{{ ('x', 'y')[1] }}", "a1y"),
        ("{{ {'a': 1} | tojson(indent=1000000000) | length < 100 }}", "True"),
    ],
)
def test_what_templates_need(template, text):
    assert render_chat(template, HELLO, bos_token="<s>") == text


@pytest.mark.parametrize(
    ("template", "words"),
    [
        ("{{ 'a' * 10**10 }}", "is not allowed"),
        ("{{ [1] * 1000000000 }}", r"\* of list and int is not allowed"),
        ("{{ '%1000000000d' % 3 }}", "% of str and int is not allowed"),
        ("{{ '{:1000000000}'.format(1) }}", "format"),
        ("{{ 'x' | center(1000000000) }}", "No filter named 'center'"),
        ("{{ 'x'.zfill(1000000000) }}", "zfill"),
        ("{{ ''.__class__.__mro__ }}", "unsafe"),
        ("{{ cycler }}{{ lipsum() }}", "'lipsum' is undefined"),
        ("{% for x in", "unexpected"),
        ("{{ raise_exception('no system role') }}", "no system role"),
        ("{{ messages[5].content }}", "no element 5"),
        ("{{ range(10000000) | list }}", "OverflowError|range"),
        ("{% macro f(x) %}{{ f(x) }}{% endmacro %}{{ f(1) }}", "RecursionError"),
        ("{{ " + "(" * 5000, "fails"),
        (DOUBLING.replace("18", "99"), "more than 1000000"),
        (DOUBLING.replace("x.a + x.a", "x.a ~ x.a").replace("18", "99"), "more than 1000000"),
        (DOUBLING + "{{ x.a.replace('a', x.a) | length }}", "more than 1000000"),
        (DOUBLING + "{{ [x.a] | map('replace', 'a', x.a) | list | length }}", "more than 1000000"),
        (
            "{% for i in range(99999) %}" + "{{ messages }}" * 9 + "{% endfor %}",
            "more than 1000000|longer than",
        ),
        (NESTING + "{{ x.a }}", "more than 1000000"),
        (NESTING.replace("[x.a, x.a]", "{'a': x.a, 'b': x.a}") + "{{ x.a | tojson }}", "more than 1000000"),
        (NESTING.replace("[x.a, x.a]", "dict(a=x.a, b=x.a)") + "{{ x.a }}", "more than 1000000"),
        (NESTING.replace("[x.a, x.a]", "[x.a] + [x.a]") + "{{ x.a }}", "more than 1000000"),
        (
            DOUBLING + "{{ 'a' | replace('a', x.a) | length }}{{ x.a | replace('a', 'abc') }}",
            "more than 1000000",
        ),
        (DOUBLING + "{{ [1, 2, 3, 4] | join(x.a) }}", "more than 1000000"),
        ("x" * 200_001, "at most 200000 are read"),
    ],
)
def test_hostile_templates_end_in_a_sentence(template, words):
    start = time.monotonic()
    with pytest.raises(ValueError, match=words):
        render_chat(template, HELLO)
    assert time.monotonic() - start < 30


def test_a_template_without_end_is_stopped():
    endless = "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}"
    with pytest.raises(ValueError, match="the chat template runs longer than 2 seconds"):
        render_chat(endless, HELLO)


@pytest.mark.parametrize(
    ("messages", "words"),
    [
        ([], "the conversation has 0 messages"),
        (["x"], "message 0 is 'x', a mapping with role and content is needed"),
        ([{"role": "user"}], "message 0 has the content None, text is needed"),
        ([{"role": 5, "content": "x"}], "message 0 has the role 5, text is needed"),
    ],
)
def test_messages_of_another_form(messages, words):
    with pytest.raises(ValueError, match=words):
        render_chat("{{ messages }}", messages)
