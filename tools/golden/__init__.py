"""Makes the golden files: small models with what BlinkDL's `rwkv` package computes with them.

pip install -r tools/golden/requirements.txt      in an environment of its own
python -m tools.golden tests/golden               from the root of the project
"""
