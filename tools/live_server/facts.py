"""Facts that a running server reports about itself."""

from __future__ import annotations

from aiohttp import ClientSession


async def metric(session: ClientSession, url: str, name: str) -> float:
    """Return the value of a metric, summed over all its labels. Raises ValueError if the server has no such metric."""
    async with session.get(f"{url}/metrics") as response:
        lines = (await response.text()).splitlines()
    values = [float(line.rpartition(" ")[2]) for line in lines if line.startswith((f"{name} ", f"{name}{{"))]
    if not values:
        raise ValueError(f"the server has no metric {name}")
    return sum(values)


async def device_of(session: ClientSession, url: str) -> str:
    """Return the name of the server's device."""
    async with session.get(f"{url}/v1/models") as response:
        return str((await response.json())["data"][0]["meta"]["device"])
