#!/usr/bin/env bash
# Makes the demo pair from scratch: tokenizer, training, export, figures.
# Training resumes from build/demo-retrieval/checkpoint.pt if it exists. Needs a C++ compiler with OpenMP.
set -euo pipefail
cd "$(dirname "$0")/../.."
. tools/demo_model/environment.sh
"$PYTHON" -m pip install --quiet --requirement tools/demo_retrieval/requirements.txt

run=build/demo-retrieval
"$PYTHON" -m tools.demo_retrieval.train --run $run
"$PYTHON" -m tools.demo_retrieval.train --run $run --reranker
"$PYTHON" -m tools.demo_retrieval.export $run rnn_engine/demo/retrieval
"$PYTHON" -m tools.demo_retrieval.measure
