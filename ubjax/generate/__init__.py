"""Prompts to text on anything that decodes batches (the Engine): many at once, sampled, stopped, streamed.

prompts.py     one or many prompts, text or ids -> requests
stream.py      the iterator of pieces; cancel, results
loop.py        one step: admit, decode, sample, extend
schedule.py    who runs, what goes into the next batch (host state only)
sampler.py     the tokens of a decode, drawn on the device
steps.py       what a loop of many decodes is asked for and gives, and how many
transcript.py  one output as it grows; stops.py holds back what may become a stop string
result.py      Piece, Generation, Report
"""

from ubjax.generate.decodes import Decodes, TextCodec, TextStream
from ubjax.generate.generates import Generates
from ubjax.generate.prompts import Options, Prompt, generate, is_one, stream
from ubjax.generate.request import Refused, Request, Sampling
from ubjax.generate.result import Generation, Piece, Report
from ubjax.generate.sampler import TokenLogprob, drawing_of, sampling_programs
from ubjax.generate.steps import MAX_STEPS, N_STOP, Drawing, NextToken, Steps, stop_room
from ubjax.generate.stream import Stream

__all__ = [
    "MAX_STEPS",
    "N_STOP",
    "Decodes",
    "Drawing",
    "Generates",
    "Generation",
    "NextToken",
    "Options",
    "Piece",
    "Prompt",
    "Refused",
    "Report",
    "Request",
    "Sampling",
    "Steps",
    "Stream",
    "TextCodec",
    "TextStream",
    "TokenLogprob",
    "drawing_of",
    "generate",
    "is_one",
    "sampling_programs",
    "stop_room",
    "stream",
]
