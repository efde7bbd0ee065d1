"""Traffic of the shape lab run through a real engine, with made-up tokens."""


def decodes_of(traffic):
    """Every decode as pieces (seq_id, n_tokens, pos, output)."""
    columns = (traffic.seq_id, traffic.n_tokens, traffic.pos, traffic.output)
    for *rows, repeats in zip(*columns, traffic.repeats, strict=True):
        pieces = [piece for piece in zip(*(row.tolist() for row in rows), strict=True) if piece[1]]
        for time in range(repeats):
            yield [(seq_id, n, pos + time, output) for seq_id, n, pos, output in pieces]


def arrays_of(pieces):
    """Tokens, sequences and output flags of one decode."""
    return {
        "token": [row % 30 for _, n, _, _ in pieces for row in range(n)],
        "seq_id": [s for s, n, _, _ in pieces for _ in range(n)],
        "output": [wanted and row + 1 == n for _, n, _, wanted in pieces for row in range(n)],
    }


def run(engine, traffic):
    """Decode the traffic; the cells of a request are freed when it has finished."""
    decodes = list(decodes_of(traffic))
    begins = [{seq_id for seq_id, _, pos, _ in pieces if pos == 0} for pieces in decodes]
    for now, pieces in enumerate(decodes):
        engine.decode(engine.batch(**arrays_of(pieces)))
        for s, *_ in pieces:
            later = (k for k in range(now + 1, len(decodes)) if any(s == piece[0] for piece in decodes[k]))
            if s in begins[next(later, now)]:
                engine.rm(s)
