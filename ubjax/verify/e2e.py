"""Replays end-to-end scenarios: a real model, the engine, statuses and logits of every output row.

Tolerances are absolute, for weights dequantized to float32 and a float32 cache; `top` holds the 8 largest
logits of a row.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np
from jax.scipy.special import logsumexp

from ubjax.config import EngineConfig
from ubjax.engine import Engine
from ubjax.loaders import load_decoder
from ubjax.outputs import Outputs
from ubjax.status import DecodeError
from ubjax.verify.report import Report


@dataclasses.dataclass(frozen=True)
class Model:
    """The model of a file: its package, and what a logit and a log-sum-exp may differ by.

    lse_off: rows whose recorded log-sum-exp is itself further from the exact one than that, with exact - recorded.
    """

    package: str
    logit: float
    lse: float
    lse_off: Mapping[str, float] = dataclasses.field(default_factory=dict)


# By the name in the file. Gemma's bounds are wide as llama.cpp reads GELU from a table in half precision. The exact
# log-sum-exps are those of transformers in float64 on the same weights.
MODELS = {
    "smollm2-f32.gguf": Model("smollm2", 5e-4, 2e-4),
    "gemma3-f32.gguf": Model(
        "gemma3",
        1.5e-2,
        5e-3,
        {
            "ragged4_unified op 6 row 2": 5.091e-3,
            "ragged4_streams op 5 row 2": -5.840e-3,
            "cp_rm_keep_unified op 3 row 1": 6.411e-3,
            "cp_rm_keep_streams op 3 row 1": 6.411e-3,
        },
    ),
}


def replay_e2e(data: Mapping[str, Any], name: str, model: str | None = None, **sizes: Any) -> Report:
    """Replay a file of scenarios; rows are operations, output rows and tokenized texts.

    model: a name or path for `load_decoder` instead of the installed package. sizes: override the engine
    configuration of the scenarios (n_ubatch, swa_full: logits must not depend on them). Raises ValueError for a model
    that has no bounds here.
    """
    if data["model"] not in MODELS:
        raise ValueError(f"the scenarios are of {data['model']!r}, one of {', '.join(MODELS)} is needed")
    report, bounds = Report(name), MODELS[data["model"]]
    decoder, tokenizer = load_decoder(bounds.package if model is None else model)
    for text, ids in data["tokenize"].items():
        report.check(f"tokenize {text!r}", {"ids": tokenizer.encode(text)}, {"ids": ids})
    for scenario in data["scenarios"]:
        engine = Engine(decoder, tokenizer, EngineConfig(**scenario["ctx"] | sizes))
        for i, op in enumerate(scenario["ops"]):
            _replay_op(engine, op, f"{scenario['name']} op {i}", report, bounds)
    return report


def _replay_op(engine: Engine, op: Mapping[str, Any], where: str, report: Report, bounds: Model) -> None:
    match op["op"]:
        case "decode":
            _replay_decode(engine, op, where, report, bounds)
        case "pos":
            ranges = [[engine.pos_min(s), engine.pos_max(s)] for s in range(engine.memory.n_seq_max)]
            report.check(where, {"pos": ranges}, {"pos": op["ret"]})
        case "rm" | "cp" | "keep" | "add" as kind:
            getattr(engine, kind)(*op["args"])
        case other:
            raise ValueError(f"{where}: unknown operation {other!r}")


def _replay_decode(engine: Engine, op: Mapping[str, Any], where: str, report: Report, bounds: Model) -> None:
    status, outputs = 0, None
    try:
        builder = engine.builder()
        for i, token in enumerate(op["tokens"]):
            builder.add_token(token["seq"][0], id=token["id"], pos=token["pos"], output=token["output"])
            for seq_id in token["seq"][1:]:
                builder.add_token_seq(i, seq_id)
        outputs = engine.decode(builder.build())
    except DecodeError as error:
        status = error.result
    report.check(where, {"status": status}, {"status": op["status"]})
    if outputs is not None:
        for row in op["rows"]:
            _check_row(outputs, row, f"{where} row {row['i']}", report, bounds)


def _check_row(outputs: Outputs, row: Mapping[str, Any], where: str, report: Report, bounds: Model) -> None:
    logits = outputs.logits(row["i"])
    ids = [token for token, _ in row["top"]]
    top_error = float(np.max(np.abs(logits[ids] - np.asarray([value for _, value in row["top"]]))))
    lse_error = abs(float(logsumexp(logits)) - (row["lse"] + bounds.lse_off.get(where, 0.0)))
    report.worst = max(report.worst, top_error)
    found = {
        "logits": "close" if top_error <= bounds.logit else top_error,
        "lse": "close" if lse_error <= bounds.lse else lse_error,
        "argmax": int(np.argmax(logits)),
    }
    report.check(where, found, {"logits": "close", "lse": "close", "argmax": ids[0]})
