"""From files and settings to the parts of an engine: model, runner, tokenizer, cache and named states."""
