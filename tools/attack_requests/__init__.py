"""A check that hostile requests can't exhaust a server's memory or block other clients, as they once did."""
