# Sets PYTHON to a Python with torch and the project, in a virtual environment that is made at first use.
# Source it from the project's root. The malloc settings keep torch from returning its buffers at every step.

PYTHON=${DEMO_MODEL_PYTHON:-build/demo-model/venv/bin/python}
if ! [ -x "$PYTHON" ]; then
    .venv/bin/python -m venv build/demo-model/venv
    "$PYTHON" -m pip install --quiet --requirement tools/demo_model/requirements.txt --editable '.[tokenizers]'
fi
export PATH="$(cd "$(dirname "$PYTHON")" && pwd):$PATH"
export MALLOC_MMAP_THRESHOLD_=4000000000 MALLOC_TRIM_THRESHOLD_=8000000000 MALLOC_TOP_PAD_=268435456
