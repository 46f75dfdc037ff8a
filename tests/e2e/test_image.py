"""Tests of the container image: its contents, and that it runs within the limits of compose.yml and kubernetes.yml."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import kubernetes_validate
import pytest
import yaml
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator

from harness.flags import defaults as flags_of_help
from harness.image import Container, Image, Neighbour, libraries
from harness.processes import ROOT, binary
from harness.waiting import until

pytestmark = pytest.mark.weir_only

DEPLOY = ROOT / "tools" / "deploy"
# The oldest release that still gets patches, and the newest release with a schema.
KUBERNETES = ("1.31", kubernetes_validate.latest_version())
# The libraries of the base image that weir is linked with.
BASE_LIBRARIES = {"libc.so.6", "libm.so.6", "libgcc_s.so.1", "ld-linux-x86-64.so.2", "ld-linux-aarch64.so.1"}


def compose() -> dict:
    return yaml.safe_load((DEPLOY / "compose.yml").read_text())["services"]


def kubernetes() -> dict[str, dict]:
    return {each["kind"]: each for each in yaml.safe_load_all((DEPLOY / "kubernetes.yml").read_text())}


def container_of_kubernetes() -> dict:
    [found] = kubernetes()["Deployment"]["spec"]["template"]["spec"]["containers"]
    return found


def environments() -> dict[str, dict[str, str]]:
    return {
        "image": Image.read().environment,
        "compose": {name: str(value) for name, value in compose()["weir"]["environment"].items()},
        "kubernetes": {each["name"]: each["value"] for each in container_of_kubernetes()["env"]},
    }


def stores_of(environment: dict[str, str]) -> dict[str, str]:
    """Returns the stores' host names in the environment, each with a made-up address."""
    addresses = environment.get("WEIR_STORAGE", "").removeprefix("redis://")
    return {each.partition(":")[0]: f"127.0.1.{number}" for number, each in enumerate(filter(None, addresses.split(",")), 1)}


@pytest.mark.parametrize("way", ["image", "compose", "kubernetes"])
def test_weir_serves_and_ends_within_the_image(servers, tmp_path: Path, way: str):
    image, environment = Image.read(), environments()[way]
    assert image.user == "nobody" and set(image.ports) == {7379, 7381}
    root = tmp_path / "root"
    image.build(root)
    if way == "kubernetes":
        (root / "etc/weir/quotas.toml").write_text(kubernetes()["ConfigMap"]["data"]["quotas.toml"])
    stores = stores_of(environment)
    weir = Container(image, root, environment, DEPLOY / "seccomp.json", stores)
    servers.keep(weir).start()
    status = Path(f"/proc/{weir.pid}/status").read_text()
    assert "CapEff:\t0000000000000000\n" in status and "Seccomp:\t2\n" in status and "NoNewPrivs:\t1\n" in status
    for address in stores.values():
        servers.keep(Neighbour(weir, address)).start()

    def served() -> bool:
        return weir.asks("curl", "-s", "-o", "/dev/null", "-w", "%{http_code}", "http://127.0.0.1:7381/readyz") == "200"

    until(served, "weir is ready")
    login = ["-u", "redis://shop:change-me@127.0.0.1:7379", "--no-auth-warning"] if way == "compose" else ["-p", "7379"]
    for number in range(20):
        assert weir.asks("redis-cli", *login, "SET", f"shop:{number}", "value") == "OK\n", weir.output()
        assert weir.asks("redis-cli", *login, "GET", f"shop:{number}") == "value\n"
    for address in stores.values():
        assert int(weir.asks("redis-cli", "-h", address, "DBSIZE")) > 0, "both stores have keys"
    if "WEIR_ADMIN_HOST" in environment:
        named = ["curl", "-s", "-H", f"Host: {environment['WEIR_ADMIN_HOST']}", "http://127.0.0.1:7381/metrics"]
        assert "weir_" in weir.asks(*named)
    weir.terminate()
    assert weir.process.returncode == 0, weir.output()


def test_the_base_image_has_the_libraries():
    assert {path.name for path in libraries(binary("weir"))} <= BASE_LIBRARIES


@pytest.mark.parametrize("way", ["image", "compose", "kubernetes"])
def test_environments_name_flags(way: str):
    flags = {f"WEIR_{flag.upper().replace('-', '_')}" for flag in flags_of_help()}
    environment = environments()[way]
    assert environment and set(environment) <= flags, set(environment) - flags


@pytest.mark.parametrize("version", KUBERNETES)
@pytest.mark.parametrize("kind", ["ConfigMap", "Deployment", "Service"])
def test_kubernetes_takes_the_manifests(kind: str, version: str):
    kubernetes_validate.validate(kubernetes()[kind], version, strict=True)


def test_names_in_the_manifests_agree():
    every = kubernetes()
    deployment, service, config = every["Deployment"]["spec"], every["Service"]["spec"], every["ConfigMap"]
    labels = deployment["template"]["metadata"]["labels"]
    assert deployment["selector"]["matchLabels"].items() <= labels.items() and service["selector"].items() <= labels.items()
    container = container_of_kubernetes()
    ports = {port["name"]: port["containerPort"] for port in container["ports"]}
    assert set(ports.values()) == set(Image.read().ports)
    assert {port["targetPort"] for port in service["ports"]} == {"redis"} <= set(ports), "the admin port stays out of the Service"
    assert {container[probe]["httpGet"]["port"] for probe in ("readinessProbe", "livenessProbe")} == {"admin"}
    volumes = {volume["name"]: volume["configMap"]["name"] for volume in deployment["template"]["spec"]["volumes"]}
    assert {mounted["name"] for mounted in container["volumeMounts"]} == set(volumes)
    assert set(volumes.values()) == {config["metadata"]["name"]}
    # Before weir is killed it has enough time for new connections to stay away, and then to drain.
    drain = float(flags_of_help()["drain-timeout"].rstrip("s"))
    [program, seconds] = container["lifecycle"]["preStop"]["exec"]["command"]
    assert program == "sleep" and float(seconds) >= 5
    assert deployment["template"]["spec"]["terminationGracePeriodSeconds"] > float(seconds) + drain
    assert float(compose()["weir"]["stop_grace_period"].rstrip("s")) > drain


def test_compose_names_what_there_is():
    services = compose()
    weir = services["weir"]
    assert (DEPLOY / weir["build"]["context"] / weir["build"]["dockerfile"]).exists()
    assert set(weir["depends_on"]) == set(stores_of(environments()["compose"])) == set(services) - {"weir"}
    for volume in weir["volumes"]:
        source, target, mode = volume.split(":")
        # A folder, in which a file that another replaces is seen.
        quotas = Path(weir["environment"]["WEIR_QUOTAS"])
        assert (DEPLOY / source).is_dir() and (DEPLOY / source / quotas.name).exists()
        assert Path(target) == quotas.parent and mode == "ro"
    assert any((DEPLOY / each.removeprefix("seccomp:")).exists() for each in weir["security_opt"] if each.startswith("seccomp:"))


def test_the_list_of_crates_is_whole_and_the_same_each_time(tmp_path: Path):
    texts = []
    for name in ("once", "again"):
        out = tmp_path / name
        subprocess.run([str(DEPLOY / "sbom"), str(out)], check=True, timeout=120)
        texts.append(out.read_text())
    assert texts[0] == texts[1]
    assert JsonStrictValidator(SchemaVersion.V1_5).validate_str(texts[0]) is None
    listed = {each["name"]: each for each in json.loads(texts[0])["components"]}
    fixed = {"glommio", "io-uring", "bytes", "crossbeam-channel", "hdrhistogram", "mimalloc", "clap"}
    # C libraries that are compiled in are listed by the crates that contain them.
    assert fixed | {"libmimalloc-sys", "lua-src", "ring"} <= set(listed)
    assert not {"proptest", "criterion", "syn", "clap_derive"} & set(listed), "what only tests or builds need"
    ours = {name for name in listed if name.startswith("weir-")}
    for name, each in listed.items():
        assert name in ours or each["licenses"] and (each["hashes"] or "purl" not in each), each
