"""What `rnn-engine bench` measures, and how it shows it."""
