"""Let `python -m rnn_engine.cli` run the command `rnn-engine`."""

from rnn_engine.cli import main

main(prog_name="rnn-engine")
