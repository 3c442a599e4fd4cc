"""Load the parts of an engine from files and settings: model, runner, tokenizer, state cache and named states."""
