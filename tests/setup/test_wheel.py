"""The wheel: it has all files that the packages need, and serves from an environment without the checkout."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import sysconfig
import venv
import zipfile
from pathlib import Path
from urllib.request import Request, urlopen

import pytest

import rnn_engine
from tests.support.distributions import absent_modules
from tests.support.documents import python_blocks
from tests.support.layers import FOLDERS, PRODUCT

ROOT = Path(__file__).resolve().parents[2]
PYRIGHT = ROOT / "tools" / "web" / "node_modules" / ".bin" / "pyright"


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a wheel built from a copy of the files that git tracks, since building leaves files in its folder."""
    source, target = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("wheel")
    names = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=True, text=True).stdout
    for name in names.split("\0"):
        if name.startswith(FOLDERS) or name in ("pyproject.toml", "README.md", "LICENSE"):
            (source / name).parent.mkdir(parents=True, exist_ok=True)
            (source / name).write_bytes((ROOT / name).read_bytes())
    pip = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation", "--no-index"]
    subprocess.run([*pip, "--wheel-dir", str(target), str(source)], check=True)
    [wheel] = target.iterdir()
    return wheel


def test_it_holds_every_file_of_the_packages(wheel: Path) -> None:
    tracked = subprocess.run(["git", "ls-files", *FOLDERS], cwd=ROOT, capture_output=True, check=True, text=True)
    inside = {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}
    assert inside == {name[name.find("rnn_engine") :] for name in tracked.stdout.split()}
    assert {name.partition("/")[0] for name in inside} == set(PRODUCT)


def dockerfile(instruction: str) -> str:
    """Return what follows an instruction of the image's file."""
    [rest] = re.findall(f"^{instruction}(.*)$", (ROOT / "deploy" / "Dockerfile").read_text(), re.MULTILINE)
    return str(rest)


@pytest.fixture(scope="module")
def scripts(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of the commands of an environment in which the wheel is installed.

    Its dependencies come from this environment, but only those that the image of deploy/ installs.
    """
    folder = tmp_path_factory.mktemp("venv")
    venv.create(folder, with_pip=False)
    scripts = folder / ("Scripts" if os.name == "nt" else "bin")
    python = scripts / "python"
    pip = [sys.executable, "-m", "pip", "--python", str(python), "install", "--quiet", "--no-deps", "--no-index"]
    subprocess.run([*pip, str(wheel)], check=True)
    place = [str(python), "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"]
    packages = subprocess.run(place, check=True, capture_output=True, text=True).stdout.strip()
    path = sysconfig.get_path("purelib")  # .pth files in that folder are not read
    absent = absent_modules(re.findall(r"\w[\w-]*", dockerfile("ARG EXTRAS=")))
    (Path(packages) / "others.pth").write_text(f"{path}\nimport sys; sys.modules.update(dict.fromkeys({absent}))\n")
    return scripts


def test_type_checkers_know_all_public_names(scripts: Path, tmp_path: Path) -> None:
    program = (ROOT / "tests" / "llm" / "test_types.py").read_text()
    assert not [name for name in rnn_engine.__all__ if f"    {name},\n" not in program]
    (tmp_path / "program.py").write_text(program)
    python = str(scripts / "python")
    cache = str(ROOT / ".mypy_cache" / "wheel")  # of what the packages import, which no run changes
    mypy = [sys.executable, "-m", "mypy", "--strict", "--cache-dir", cache, "--python-executable", python, "program.py"]
    _check(mypy, tmp_path)
    if PYRIGHT.exists():  # where npm is
        settings = {"include": ["program.py"], "typeCheckingMode": "strict"}
        (tmp_path / "pyrightconfig.json").write_text(json.dumps(settings))
        _check([str(PYRIGHT), "--pythonpath", python], tmp_path)


def _check(command: list[str], folder: Path) -> None:
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=200, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_guides_examples_of_python_run_as_one_program(scripts: Path, tmp_path: Path) -> None:
    blocks = python_blocks("docs/user-guide.md", "### Use it from Python")
    assert len(blocks) == 12
    (tmp_path / "program.py").write_text("\n".join(blocks))
    for name in ("server", "states", "shaders"):  # a program may have modules of its own with these names
        (tmp_path / f"{name}.py").write_text("raise AssertionError")
    command = [str(scripts / "python"), "program.py"]
    done = subprocess.run(command, cwd=tmp_path, check=False, capture_output=True, text=True, timeout=250)
    assert (done.returncode, done.stderr) == (0, "")
    assert "The capital of France is Paris." in done.stdout
    assert "get_weather" in done.stdout
    assert (tmp_path / "brief.state").is_file()


def test_the_entry_point_of_the_image_serves_with_what_the_image_installs(scripts: Path, tmp_path: Path) -> None:
    name, *options = json.loads(
        dockerfile("ENTRYPOINT ").replace("/data", str(tmp_path)).replace("0.0.0.0", "127.0.0.1")
    )
    command = [str(scripts / name), *options, "--device", "cpu", "--port", "0"]
    with subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            said = "".join(process.stdout.readline() for _ in range(3))
            [address] = re.findall(r"^address +(http://\S+)$", said, re.MULTILINE)
            body = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 3, "state": "pirate"}
            request = Request(f"{address}/v1/chat/completions", json.dumps(body).encode())
            with urlopen(request, timeout=60) as response:
                answer = json.load(response)
            assert answer["usage"]["completion_tokens"] > 0
            process.terminate()
            assert process.wait(20) == 0
        finally:
            process.kill()
