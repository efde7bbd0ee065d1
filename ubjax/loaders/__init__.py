"""Model files into hyperparameters, float weights and a tokenizer; its use needs the extra `ubjax[gguf]`."""
