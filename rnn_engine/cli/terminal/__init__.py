"""The terminal of `rnn-engine chat`: the conversation, its commands, what is typed and what is shown."""
