"""The example manifest, held against the published schema and what Kubernetes documents.

Sources: kubernetes.io, concepts/workloads/controllers/job (Indexed: completions, the pod's name and
host name, restartPolicy Never or OnFailure), concepts/services-networking/dns-pod-service (headless
service, subdomain), tasks/manage-gpus/scheduling-gpus (extended resources: requests equal limits).
"""

from __future__ import annotations

from typing import Any

import pytest
import yaml

from tests.builders import ROOT

Manifest = dict[str, Any]


@pytest.fixture
def manifests() -> dict[str, Manifest]:
    text = (ROOT / "docs" / "kubernetes.yaml").read_text(encoding="utf-8")
    return {one["kind"]: one for one in yaml.safe_load_all(text)}


def problems(manifests: dict[str, Manifest]) -> list[str]:
    """What is wrong with the manifests, by the rules of the module's docstring."""
    service, job = manifests["Service"], manifests["Job"]
    spec = job["spec"]
    pod = spec["template"]["spec"]
    (container,) = pod["containers"]
    resources = container["resources"]
    volumes = {volume["name"] for volume in pod["volumes"]}
    labels = spec["template"]["metadata"]["labels"]
    command = " ".join(container["command"])
    name, domain = job["metadata"]["name"], service["metadata"]["name"]
    port = service["spec"]["ports"][0]["port"]
    rules = {
        "versions": (service["apiVersion"], job["apiVersion"]) == ("v1", "batch/v1"),
        "indexed": spec["completionMode"] == "Indexed",
        "one pod a node": spec["completions"] == spec["parallelism"],
        "as many as torchrun waits for": f"--nnodes={spec['completions']} " in command,
        "never restarted": pod["restartPolicy"] == "Never" and spec["backoffLimit"] == 0,
        "headless": service["spec"]["clusterIP"] == "None",
        "selects the pods": service["spec"]["selector"].items() <= labels.items(),
        "in the service's domain": pod["subdomain"] == domain,
        "meets at the first pod": f"--rdzv-endpoint={name}-0.{domain}:{port} " in command,
        "extended resources are not overcommitted": resources["requests"] == resources["limits"],
        "devices": resources["limits"]["aws.amazon.com/neuron"] == 16,
        "interfaces": resources["limits"]["vpc.amazonaws.com/efa"] == 16,
        "mounts what there is": {m["name"] for m in container["volumeMounts"]} == volumes,
        "texts in env": all(isinstance(one["value"], str) for one in container["env"]),
    }
    return [rule for rule, holds in rules.items() if not holds]


def test_the_example_manifest_keeps_every_rule(manifests: dict[str, Manifest]) -> None:
    assert problems(manifests) == []


@pytest.mark.parametrize(
    ("path", "value", "rule"),
    [
        (("Job", "spec", "completionMode"), "NonIndexed", "indexed"),
        (("Job", "spec", "parallelism"), 1, "one pod a node"),
        (("Job", "spec", "template", "spec", "subdomain"), "other", "in the service's domain"),
        (("Service", "spec", "clusterIP"), "10.0.0.1", "headless"),
        (("Service", "spec", "selector"), {"app": "other"}, "selects the pods"),
        (("Service", "metadata", "name"), "other", "meets at the first pod"),
    ],
)
def test_a_manifest_that_breaks_a_rule_is_told(
    manifests: dict[str, Manifest], path: tuple[str, ...], value: object, rule: str
) -> None:
    place: Any = manifests
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = value
    assert rule in problems(manifests)


SCHEMA = "1.35"
"""Release of Kubernetes whose published schemas are taken, with no field but those they have."""


def refusals(manifests: dict[str, Manifest]) -> list[str]:
    """What the published schemas say against the manifests."""
    reason = "kubernetes-validate has the schemas (make setup-dev)"
    schemas: Any = pytest.importorskip("kubernetes_validate", reason=reason)
    found = []
    for manifest in manifests.values():
        try:
            schemas.validate(manifest, SCHEMA, strict=True)
        except schemas.ValidationError as error:
            found.append(str(error.message))
    return found


def test_the_published_schemas_take_the_manifest(manifests: dict[str, Manifest]) -> None:
    assert refusals(manifests) == []


def test_the_published_schemas_refuse_another_type_and_an_unknown_field(
    manifests: dict[str, Manifest],
) -> None:
    manifests["Job"]["spec"]["completions"] = "two"
    manifests["Service"]["spec"]["headless"] = True
    told = " ".join(refusals(manifests))
    assert "'two' is not of type 'integer'" in told
    assert "'headless' was unexpected" in told
