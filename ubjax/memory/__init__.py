"""The memory of an attention model: cells, slots, sequence operations, masks, and the K/V arrays they describe."""
