"""One output as it grows: whole characters only, and each way to end."""

import codecs

from ubjax.generate.request import Request
from ubjax.generate.sampler import TokenLogprob
from ubjax.generate.transcript import Transcript


class Bytes:
    """A tokenizer whose tokens are the 256 bytes; 256 ends a generation."""

    eog_ids = frozenset({256})

    def encode(self, text: str, /) -> list[int]:
        return list(text.encode())

    def stream(self):
        return ByteStream()


class ByteStream:
    def __init__(self):
        self.decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def feed(self, ids, /):
        return self.decoder.decode(bytes(ids))

    def flush(self):
        return self.decoder.decode(b"", final=True)


def taken(tokens, codec=None, **wanted):
    """The transcript of these tokens, up to its end, and what each of them showed."""
    transcript = Transcript(Request(ids=(1,), **wanted), Bytes() if codec is None else codec)
    shown = []
    for token in tokens:
        shown.append(transcript.take(TokenLogprob(token=token, logprob=-1.0)))
        if transcript.reason:
            break
    assert transcript.text == "".join(shown)
    return transcript, shown


def test_characters_are_shown_whole():
    transcript, shown = taken("a€b".encode(), max_tokens=10)
    assert shown == ["a", "", "", "€", "b"]
    assert (transcript.reason, transcript.tokens) == (None, list("a€b".encode()))


def test_a_stop_string_across_tokens_and_inside_a_character():
    transcript, shown = taken("price 5 €, more".encode(), stop=("5 €",))
    assert (transcript.text, transcript.reason) == ("price ", "stop")
    assert bytes(transcript.tokens).decode() == "price 5 €"
    assert "5" not in "".join(shown)


def test_a_beginning_of_a_stop_string_is_shown_in_the_end():
    transcript, shown = taken(b"ab", stop=("bcd",), max_tokens=2)
    assert (shown, transcript.reason) == (["a", "b"], "length")


def test_end_tokens_are_no_part_of_the_output_and_half_a_character_is_replaced():
    for tokens, wanted in (
        ([97, 0xC3, 256], {}),
        ([97, 0xC3, 98], {"stop_tokens": frozenset({98})}),
    ):
        transcript, _ = taken(tokens, **wanted)
        assert (transcript.tokens, transcript.reason, transcript.text) == ([97, 0xC3], "stop", "a�")


def test_log_probabilities_are_kept_where_asked_for():
    assert [x.token for x in taken([97, 98], logprobs=0)[0].logprobs] == [97, 98]
    assert taken([97, 98])[0].logprobs == []


def test_an_ended_output_says_why():
    transcript = Transcript(Request(ids=(1,)), None)
    assert transcript.take(TokenLogprob(token=3, logprob=0.0)) == ""
    transcript.end("refused", "no token")
    assert (transcript.tokens, transcript.reason, transcript.error) == ([3], "refused", "no token")
