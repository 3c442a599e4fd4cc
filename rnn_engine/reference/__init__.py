"""What the numpy forward passes of all versions share.

They are what runs on the device "cpu", and what the tests compare other devices with. What they are themselves
compared with are the golden files in tests/golden, which BlinkDL's `rwkv` package computed.
"""
