"""The files in deploy/ use only existing options, routes and packages."""

from __future__ import annotations

import configparser
import json
import re
import shlex
from itertools import pairwise
from pathlib import Path

import yaml

from rnn_engine.cli.replicas import ReplicaArgs, application
from rnn_engine.cli.serve import fleet_command as fleet
from rnn_engine.cli.serve import serve_command as command
from rnn_engine_server.apis.routes import ALL_ROUTES
from rnn_engine_server.core.settings import ServerSettings
from tests.support.layers import FOLDERS

ROOT = Path(__file__).resolve().parents[2]
DEPLOY = ROOT / "deploy"
OPTIONS = {name for parameter in command.params for name in parameter.opts}


def unit(name: str) -> configparser.ConfigParser:
    parser = configparser.ConfigParser(strict=False, interpolation=None)
    parser.optionxform = str  # type: ignore[assignment, method-assign]
    parser.read(DEPLOY / name)
    return parser


def dockerfile() -> str:
    return (DEPLOY / "Dockerfile").read_text().replace("\\\n", " ")


def long_options(words: list[str]) -> set[str]:
    return {word for word in words if word.startswith("--")}


def test_the_service_starts_with_options_that_there_are() -> None:
    words = shlex.split(unit("rnn-engine.service")["Service"]["ExecStart"])
    assert words[1] == "serve"
    assert long_options(words) <= OPTIONS


def test_the_socket_has_the_port_of_the_server() -> None:
    text = (DEPLOY / "rnn-engine.socket").read_text()
    assert f"ListenStream=127.0.0.1:{ServerSettings().port}\n" in text


def test_the_image_starts_with_options_that_there_are() -> None:
    [words] = [json.loads(words) for words in re.findall(r"^ENTRYPOINT (\[.*)$", dockerfile(), re.MULTILINE)]
    assert words[:2] == ["rnn-engine", "serve"]
    assert long_options(words) <= OPTIONS


def test_the_replicas_on_kubernetes_are_as_many_as_the_workers_and_have_their_resources() -> None:
    job, service = yaml.safe_load_all((DEPLOY / "kuberay.yaml").read_text())
    words = shlex.split(job["spec"]["entrypoint"])
    assert words[:2] == ["rnn-engine", "fleet"]
    assert long_options(words) <= {name for parameter in fleet.params for name in parameter.opts}
    given = dict(pairwise(words))
    [workers] = job["spec"]["rayClusterSpec"]["workerGroupSpecs"]
    [worker] = workers["template"]["spec"]["containers"]
    limits = worker["resources"]["limits"]
    assert workers["minReplicas"] == workers["replicas"] == workers["maxReplicas"] == int(given["--replicas"])
    assert (limits["cpu"], limits["nvidia.com/gpu"]) == (given["--replica-cpus"], int(given["--replica-gpus"]))
    [head] = job["spec"]["rayClusterSpec"]["headGroupSpec"]["template"]["spec"]["containers"]
    assert [port["containerPort"] for port in head["ports"]] == [int(given["--port"])]
    assert service["spec"]["ports"][0]["targetPort"] == head["ports"][0]["name"]


def test_replicas_that_serve_keeps_are_described_by_fields_that_there_are() -> None:
    text = (DEPLOY / "serve.yaml").read_text()
    [described] = yaml.safe_load(text)["applications"]
    args = ReplicaArgs.model_validate(described["args"])
    module, _, name = described["import_path"].partition(":")
    assert (module, name) == (application.__module__, application.__name__)
    [words] = [shlex.split(line) for line in re.findall(r"^#\s+(rnn-engine fleet .*)$", text, re.MULTILINE)]
    assert long_options(words) <= {name for parameter in fleet.params for name in parameter.opts}
    given = dict(pairwise(words))
    assert (given["--application"], words[-1], int(given["--slots"])) == (
        described["name"],
        str(args.model),
        args.slots,
    )


def test_the_image_is_asked_for_its_health_on_a_route_that_needs_no_key() -> None:
    [(port, path)] = re.findall(r"http://127\.0\.0\.1:(\d+)(/[\w/]+)", dockerfile())
    assert int(port) == ServerSettings().port
    assert path in {route.path for route in ALL_ROUTES if route.always}
    assert f"EXPOSE {port}" in dockerfile()


def test_the_image_holds_the_packages_of_the_wheel_and_runs_without_root() -> None:
    copied = {source for source, target in re.findall(r"^COPY (\w+) (\w+)$", dockerfile(), re.MULTILINE)}
    allowed = set(re.findall(r"^!(.+)$", (DEPLOY / "Dockerfile.dockerignore").read_text(), re.MULTILINE))
    assert copied == set(FOLDERS)
    assert copied <= allowed
    assert all((ROOT / name).exists() for name in allowed)
    assert re.findall(r"^USER (.+)$", dockerfile(), re.MULTILINE) == ["10001"]
