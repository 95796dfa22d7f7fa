"""Checks docker-compose.yml where Docker is not at hand: check_compose.py COMPOSE NGINX_CONF."""

import re
import sys

import yaml

CONDITIONS = {"service_started", "service_healthy", "service_completed_successfully"}


def problems(compose, nginx):
    services = compose.get("services", {})
    for name, service in services.items():
        if not service.get("image"):
            yield f"{name}: no image"
        for other, how in service.get("depends_on", {}).items():
            if other not in services:
                yield f"{name}: depends on {other}, which is not there"
                continue
            condition = how.get("condition")
            if condition not in CONDITIONS:
                yield f"{name}: condition {condition} on {other} is unknown"
            if condition == "service_healthy" and not services[other].get("healthcheck"):
                yield f"{name}: waits for {other} to be healthy, but {other} has no healthcheck"
        for key, value in service.get("environment", {}).items():
            if not isinstance(value, str):
                yield f"{name}: {key} is {value!r}; quote it"
        for volume in service.get("volumes", []):
            source = volume.split(":")[0]
            if not source.startswith((".", "/")) and source not in compose.get("volumes", {}):
                yield f"{name}: volume {source} is not declared"

    brokers = {n: s for n, s in services.items() if n.startswith("broker-")}
    if len(brokers) != 3:
        yield f"{len(brokers)} brokers, want 3"
    ids = [s["environment"]["QUEEN_SERVER_ID"] for s in brokers.values()]
    if len(set(ids)) != len(ids):
        yield "two brokers share a QUEEN_SERVER_ID"
    for name, service in brokers.items():
        if service["depends_on"].get("migrate", {}).get("condition") != "service_completed_successfully":
            yield f"{name}: starts before the migration is done"
        if service["environment"]["DATABASE_URL"] != services["migrate"]["environment"]["DATABASE_URL"]:
            yield f"{name}: another database than the migration's"

    limit = re.search(r"max_connections=(\d+)", " ".join(services["postgres"].get("command", [])))
    pools = sum(int(s["environment"]["DB_POOL_SIZE"]) for s in brokers.values())
    if not limit or pools + 10 > int(limit.group(1)):
        yield f"the brokers' pools ({pools}) do not fit PostgreSQL's max_connections"

    upstream = set(re.findall(r"server (broker-\d+):6632", nginx))
    if upstream != set(brokers):
        yield f"nginx sends to {sorted(upstream)}, the brokers are {sorted(brokers)}"
    if "6632" not in str(services["nginx"].get("ports")):
        yield "nginx does not publish 6632"


def main():
    with open(sys.argv[1], encoding="utf-8") as f:
        compose = yaml.safe_load(f)
    with open(sys.argv[2], encoding="utf-8") as f:
        nginx = f.read()
    found = list(problems(compose, nginx))
    for line in found:
        print(f"check_compose: {line}", file=sys.stderr)
    sys.exit(1 if found else 0)


main()
