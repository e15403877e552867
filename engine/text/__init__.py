"""Between text and token ids: tokenizer, chat template, detokenizer, stops."""
