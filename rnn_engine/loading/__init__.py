"""Load the parts of an engine from files and settings: model, runner, tokenizer, cache and named states."""
