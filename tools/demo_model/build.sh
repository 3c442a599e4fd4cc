#!/usr/bin/env bash
# Makes the demo model from scratch: tokenizer, training, export, tuned state, loss curve.
# Training resumes from build/demo-model/checkpoint.pt if it exists. Needs a C++ compiler with OpenMP.
set -euo pipefail
cd "$(dirname "$0")/../.."
. tools/demo_model/environment.sh

run=build/demo-model
demo=rnn_engine/demo
mkdir -p $run
[ -e $run/tokenizer.json ] || "$PYTHON" -m tools.demo_model.vocabulary $run/tokenizer.json
"$PYTHON" -m tools.demo_model.train --run $run --phase first --steps 4200 --cooldown 800
"$PYTHON" -m tools.demo_model.train --run $run --phase second --after 4200 --steps 6220 --cooldown 800
"$PYTHON" -m tools.demo_model.train --run $run --phase third --after 6220 --steps 12000 --cooldown 2000
"$PYTHON" -m tools.demo_model.export $run $demo/demo.safetensors docs/demo-model/loss.svg
cp $run/tokenizer.json $demo/tokenizer.json
.venv/bin/python -m tools.demo_model.pirate_data $run/pirate.jsonl
.venv/bin/rnn-engine tune-state $run/pirate.jsonl -o $demo/pirate.safetensors \
    --device cpu --batch-size 16 --steps 400 --rate 1 --patience 20
.venv/bin/python -m tools.demo_model.evaluate --count 100
