"""ubjax: ragged language-model traffic in fixed shapes."""
