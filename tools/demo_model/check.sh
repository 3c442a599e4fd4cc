#!/usr/bin/env bash
# Checks that the demo model's tools work: the recurrence, a short training, and the export through the engine.
set -euo pipefail
cd "$(dirname "$0")/../.."
. tools/demo_model/environment.sh

"$PYTHON" -m tools.demo_model.check
