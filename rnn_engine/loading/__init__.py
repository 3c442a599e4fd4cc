"""Load the parts of an engine from a model file and settings: runner, tokenizer, state cache and named states."""
