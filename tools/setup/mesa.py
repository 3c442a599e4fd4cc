"""Install Mesa's Vulkan drivers on Debian and Ubuntu. One is a software driver for machines without a GPU.

On Debian 12 they come from its backports: with those the same kernels run about 14 times faster than with its own Mesa
22.3.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

from tools.setup.shell import SetupError, Shell

FAST_VERSION = 25
PACKAGES = ("mesa-vulkan-drivers", "libvulkan1")
APT = ("env", "DEBIAN_FRONTEND=noninteractive", "apt-get", "--quiet", "--quiet", "-o", "DPkg::Lock::Timeout=120")

OLD_RELEASE = "bookworm"
BACKPORTS = f"{OLD_RELEASE}-backports"
KEYRING = "/usr/share/keyrings/debian-archive-keyring.gpg"
SOURCE_FILE = Path("/etc/apt/sources.list.d") / f"{BACKPORTS}.sources"
ONLY_OUR_SOURCE = (
    *("-o", f"Dir::Etc::SourceList={SOURCE_FILE}"),
    *("-o", "Dir::Etc::SourceParts=-"),
    *("-o", "APT::Get::List-Cleanup=false"),  # keep the lists of the other sources
)

OTHER_SYSTEMS = (
    "Install the Vulkan driver of your GPU or, where there is none, Mesa's software driver "
    "(mesa-vulkan-drivers on Fedora, vulkan-swrast on Arch)."
)


def can_install(shell: Shell) -> bool:
    """Return True if apt is installed and the user may run it as root without a password."""
    return shell.has("apt-get") and shell.root_prefix is not None


def advice(shell: Shell) -> str:
    """Return how the user can install a driver: the commands to run as root, or other advice without apt."""
    if not shell.has("apt-get"):
        return OTHER_SYSTEMS
    sources = _sources(shell)
    lines = ["As root:"]
    if OLD_RELEASE in sources and BACKPORTS not in sources:
        lines.append(f"printf '{_source_text(sources[OLD_RELEASE])}' > {SOURCE_FILE}".replace("\n", "\\n"))
    release = ["--target-release", BACKPORTS] if OLD_RELEASE in sources else []
    lines += ["apt-get update", " ".join(["apt-get install", *release, *PACKAGES])]
    return "\n    ".join(lines) + "\nA GPU needs its vendor's Vulkan driver instead."


def install(shell: Shell) -> None:
    """Install Mesa's Vulkan drivers with apt. Raises SetupError if apt fails."""
    shell.say(f"no Vulkan device was found; installing {' and '.join(PACKAGES)} with apt")
    try:
        shell.run_as_root(*APT, "update")
    except SetupError:
        shell.say("not all of apt's package lists could be updated; going on with those that are available")
    release = _release_options(shell)
    shell.run_as_root(*APT, "install", "--yes", "--no-install-recommends", *release, *PACKAGES)


def _release_options(shell: Shell) -> tuple[str, ...]:
    """Return the options for installing from backports; none if they are not needed or can't be added."""
    sources = _sources(shell)
    if OLD_RELEASE not in sources:
        return ()
    if BACKPORTS not in sources:
        try:
            _add_backports(sources[OLD_RELEASE], shell)
        except SetupError as error:
            shell.say(f"{BACKPORTS} can't be used ({error}); installing {OLD_RELEASE}'s own Mesa, which is much slower")
            return ()
    return ("--target-release", BACKPORTS)


def _sources(shell: Shell) -> dict[str, str]:
    """Return the archive address of each release in apt's package sources, by the release's name."""
    lines = shell.read("apt-get", "update", "--print-uris") or ""
    return {release: address for address, release in re.findall(r"^'(\S+)/dists/(\S+)/InRelease'", lines, re.MULTILINE)}


def _add_backports(address: str, shell: Shell) -> None:
    """Add the backports at `address` to apt's sources. If that fails, remove them again and raise SetupError."""
    shell.say(f"adding {SOURCE_FILE}")
    write = ("sh", "-c", 'printf %s "$1" > "$2"', "sh", _source_text(address), os.fspath(SOURCE_FILE))
    shell.run_as_root(*write)
    try:
        shell.run_as_root(*APT, *ONLY_OUR_SOURCE, "update", "--error-on=any")
    except SetupError:
        shell.run_as_root("rm", "--force", os.fspath(SOURCE_FILE))
        raise


def _source_text(address: str) -> str:
    return f"Types: deb\nURIs: {address}\nSuites: {BACKPORTS}\nComponents: main\nSigned-By: {KEYRING}\n"
