"""Generate the golden files of the tests: small models, and the results of BlinkDL's `rwkv` package for them.

Gradients come from torch's autograd, by the same formulas.

pip install -r tools/golden/requirements.txt    # in an environment of its own
python -m tools.golden tests/golden             # from the root of the project
"""
