"""The packages and the release to install, and the advice to a person."""

from __future__ import annotations

import pytest

from tests.support.fake_shell import FakeShell
from tools.setup import mesa
from tools.setup.shell import SetupError


def uris(*sources: str) -> str:
    """Return apt-get's list of addresses to fetch, for sources given as `release address`."""
    pairs = [source.split() for source in sources]
    lines = [f"'{address}/dists/{release}/{name}' {release}_{name} 0" for release, address in pairs for name in FILES]
    return "\n".join(lines) + "\n"


FILES = ("InRelease", "main/binary-amd64/Packages.xz")
BOOKWORM = uris("bookworm http://mirror/debian", "bookworm-security http://mirror/security")
WITH_BACKPORTS = BOOKWORM + uris("bookworm-backports http://mirror/debian")
UBUNTU = uris("noble http://mirror/ubuntu", "noble-updates http://mirror/ubuntu")
INSTALL = "install --yes --no-install-recommends"
FROM_BACKPORTS = f"{INSTALL} --target-release bookworm-backports mesa-vulkan-drivers libvulkan1"
PLAIN = f"{INSTALL} mesa-vulkan-drivers libvulkan1"


def install(sources: str, *failing: str) -> FakeShell:
    shell = FakeShell(answers={"--print-uris": sources}, failing=failing)
    mesa.install(shell)
    return shell


def test_debian_12_gets_its_backports_from_its_own_mirror() -> None:
    shell = install(BOOKWORM)
    [added] = [command for command in shell.commands if command.startswith("sh -c")]
    for line in ("URIs: http://mirror/debian\n", "Suites: bookworm-backports\n", "Signed-By: /usr/share/keyrings/"):
        assert line in added
    assert shell.commands[-1].endswith(FROM_BACKPORTS)


def test_backports_that_are_there_already_are_not_added_again() -> None:
    shell = install(WITH_BACKPORTS)
    assert not any("bookworm-backports.sources" in command for command in shell.commands)
    assert shell.commands[-1].endswith(FROM_BACKPORTS)


def test_backports_that_cannot_be_had_leave_no_source_behind_and_the_plain_driver_is_taken() -> None:
    shell = install(BOOKWORM, "--error-on=any")
    assert shell.commands[-2] == f"rm --force {mesa.SOURCE_FILE}"
    assert shell.commands[-1].endswith(PLAIN)
    assert any("much slower" in line for line in shell.said)


def test_other_releases_get_their_own_driver() -> None:
    assert install(UBUNTU).commands[-1].endswith(PLAIN)


def test_a_source_that_cannot_be_updated_does_not_stop_the_installation() -> None:
    shell = FakeShell(
        answers={"--print-uris": UBUNTU}, failing=("apt-get --quiet --quiet -o DPkg::Lock::Timeout=120 update",)
    )
    mesa.install(shell)
    assert shell.commands[-1].endswith(PLAIN)


def test_a_failed_installation_is_an_error() -> None:
    with pytest.raises(SetupError, match="mesa-vulkan-drivers"):
        install(UBUNTU, "install --yes")


@pytest.mark.parametrize(
    ("programs", "prefix", "can"),
    [(("apt-get",), (), True), (("apt-get",), ("sudo", "-n"), True), (("apt-get",), None, False), ((), (), False)],
)
def test_can_install_needs_apt_and_root(programs: tuple[str, ...], prefix: tuple[str, ...] | None, can: bool) -> None:
    assert mesa.can_install(FakeShell(programs=programs, prefix=prefix)) is can


def test_advice_is_a_list_of_commands_for_this_release() -> None:
    bookworm = mesa.advice(FakeShell(answers={"--print-uris": BOOKWORM}))
    assert r"URIs: http://mirror/debian\nSuites: bookworm-backports\n" in bookworm
    assert f"apt-get install --target-release bookworm-backports {' '.join(mesa.PACKAGES)}" in bookworm
    ubuntu = mesa.advice(FakeShell(answers={"--print-uris": UBUNTU}))
    assert f"apt-get install {' '.join(mesa.PACKAGES)}" in ubuntu
    assert mesa.advice(FakeShell(programs=())) == mesa.OTHER_SYSTEMS
