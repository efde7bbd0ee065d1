"""Replays end-to-end scenarios: a real model, the engine, statuses and logits of every output row.

Tolerances are absolute, for weights dequantized to float32 and a float32 cache; `top` holds the 8 largest
logits of a row.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
from jax.scipy.special import logsumexp

from ubjax.config import EngineConfig
from ubjax.engine import Engine
from ubjax.loaders import load_model
from ubjax.outputs import Outputs
from ubjax.status import DecodeError
from ubjax.verify.report import Report

LOGIT_TOLERANCE = 5e-4
LSE_TOLERANCE = 2e-4


def replay_e2e(
    data: Mapping[str, Any], name: str, model: str = "smollm2", n_ubatch: int | None = None
) -> Report:
    """Replay a file of scenarios with a model; rows are operations, output rows and tokenized texts.

    n_ubatch: overrides that of the scenarios (the logits must not depend on it).
    """
    report = Report(name)
    decoder, tokenizer = load_model(model)
    for text, ids in data["tokenize"].items():
        report.check(f"tokenize {text!r}", {"ids": tokenizer.encode(text)}, {"ids": ids})
    for scenario in data["scenarios"]:
        sizes = scenario["ctx"] | ({} if n_ubatch is None else {"n_ubatch": n_ubatch})
        engine = Engine(decoder, tokenizer, EngineConfig(**sizes))
        for i, op in enumerate(scenario["ops"]):
            _replay_op(engine, op, f"{scenario['name']} op {i}", report)
    return report


def _replay_op(engine: Engine, op: Mapping[str, Any], where: str, report: Report) -> None:
    match op["op"]:
        case "decode":
            _replay_decode(engine, op, where, report)
        case "pos":
            ranges = [[engine.pos_min(s), engine.pos_max(s)] for s in range(engine.memory.n_seq_max)]
            report.check(where, {"pos": ranges}, {"pos": op["ret"]})
        case "rm" | "cp" | "keep" | "add" as kind:
            getattr(engine, kind)(*op["args"])
        case other:
            raise ValueError(f"{where}: unknown operation {other!r}")


def _replay_decode(engine: Engine, op: Mapping[str, Any], where: str, report: Report) -> None:
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
            _check_row(outputs, row, f"{where} row {row['i']}", report)


def _check_row(outputs: Outputs, row: Mapping[str, Any], where: str, report: Report) -> None:
    logits = outputs.logits(row["i"])
    ids = [token for token, _ in row["top"]]
    top_error = float(np.max(np.abs(logits[ids] - np.asarray([value for _, value in row["top"]]))))
    lse_error = abs(float(logsumexp(logits)) - row["lse"])
    report.worst = max(report.worst, top_error)
    found = {
        "logits": top_error if top_error > LOGIT_TOLERANCE or np.isnan(top_error) else "close",
        "lse": lse_error if lse_error > LSE_TOLERANCE or np.isnan(lse_error) else "close",
        "argmax": int(np.argmax(logits)),
    }
    report.check(where, found, {"logits": "close", "lse": "close", "argmax": ids[0]})
