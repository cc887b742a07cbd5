"""The dashboard and the alerts ask for metrics that a run has."""

from __future__ import annotations

import json
import re
import shutil
import signal
import subprocess
import sys
import time
import urllib.parse
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from ronde.report.metrics.families import FAMILIES

DEPLOY = Path(__file__).parents[2] / "deploy"
RULES = DEPLOY / "prometheus/ronde.rules.yml"
DASHBOARD: dict[str, Any] = json.loads((DEPLOY / "grafana/ronde.json").read_text())
LABELS = {family.name: {*family.labels, "job", "instance"} for family in FAMILIES}
USE = re.compile(r"\b(ronde_run_\w+)(?:\{([^}]*)\})?")


def expressions_of_rules() -> list[str]:
    groups = yaml.safe_load(RULES.read_text())["groups"]
    return [rule["expr"] for group in groups for rule in group["rules"]]


def expressions_of_dashboard() -> list[str]:
    panels = [target["expr"] for panel in DASHBOARD["panels"] for target in panel["targets"]]
    variables = [each["query"] for each in DASHBOARD["templating"]["list"] if each["type"] == "query"]
    asked = [re.sub(r"label_values\((.*), \w+\)", r"\1", each["query"]) for each in variables]
    return [*panels, *asked, *(each["expr"] for each in DASHBOARD["annotations"]["list"])]


@pytest.mark.parametrize("expression", [*expressions_of_rules(), *expressions_of_dashboard()])
def test_metrics_and_labels_are_those_of_a_run(expression: str) -> None:
    uses = USE.findall(expression)
    assert uses
    for name, matchers in uses:
        assert name in LABELS, "no such metric"
        assert set(re.findall(r"(\w+)=", matchers)) <= LABELS[name], name
    known = set().union(*(LABELS[name] for name, _ in uses))
    for group in re.findall(r"\bby \(([\w, ]+)\)", expression):
        assert set(group.split(", ")) <= known


def test_rules_name_what_to_do_and_are_all_tried() -> None:
    tested = yaml.safe_load((DEPLOY / "prometheus/ronde.rules.test.yml").read_text())["tests"]
    tried = {each["alertname"] for test in tested for each in test["alert_rule_test"] if "exp_alerts" in each}
    rules = [rule for group in yaml.safe_load(RULES.read_text())["groups"] for rule in group["rules"]]
    assert {rule["alert"] for rule in rules} == tried
    for rule in rules:
        assert rule["annotations"].keys() == {"summary", "description"}
        assert rule["labels"]["severity"] in ("critical", "warning", "info")


def test_panels_do_not_overlap_and_show_every_metric() -> None:
    covered: set[tuple[int, int]] = set()
    for panel in DASHBOARD["panels"]:
        at = panel["gridPos"]
        cells = {(x, y) for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])}
        assert not cells & covered
        assert at["x"] + at["w"] <= 24
        covered |= cells
    assert len({panel["id"] for panel in DASHBOARD["panels"]}) == len(DASHBOARD["panels"])
    shown = {name for expression in expressions_of_dashboard() for name, _ in USE.findall(expression)}
    assert {name for name in LABELS if "checkpoint" not in name and "timestamp" not in name} - shown == {
        "ronde_run_rank_info"  # to join other metrics of a host
    }


def need(tool: str) -> str:
    found = shutil.which(tool)
    if found is None:
        pytest.skip(f"{tool} is missing; it is in the package prometheus")
    return found


@pytest.mark.soak
def test_promtool_finds_no_fault(tmp_path: Path) -> None:
    promtool = need("promtool")
    folder = DEPLOY / "prometheus"
    told = [expression.replace("$__rate_interval", "1m") for expression in expressions_of_dashboard()]
    recording = [{"record": f"panel:{number}", "expr": expr} for number, expr in enumerate(told)]
    panels = tmp_path / "panels.yml"
    panels.write_text(yaml.safe_dump({"groups": [{"name": "panels", "rules": recording}]}))
    for words in (
        ["check", "rules", "ronde.rules.yml"],
        ["check", "rules", str(panels)],
        ["check", "config", "prometheus.yml"],
        ["test", "rules", "ronde.rules.test.yml"],
    ):
        done = subprocess.run([promtool, *words], cwd=folder, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr


SCRIPT = """
import sys, time, torch
net = torch.nn.Linear(8, 1)
optimizer = torch.optim.SGD(net.parameters(), 0.01)
for step in range(100_000):
    loss = net(torch.randn(16, 8)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    time.sleep(0.05)
    loss.item()
"""


@pytest.mark.soak
def test_prometheus_scrapes_a_run_through_a_restart(tmp_path: Path) -> None:
    prometheus, promtool = need("prometheus"), need("promtool")
    (tmp_path / "train.py").write_text(SCRIPT)
    options = "--run-dir run --checkpoint saved --every 5 --restarts 1 --metrics 0"
    command = [sys.executable, "-m", "ronde", "run", "--ranks", "2", *options.split(), "train.py"]
    with open(tmp_path / "err", "w") as err:
        run = subprocess.Popen(command, cwd=tmp_path, stdout=err, stderr=err)
    asker = None
    try:
        said = until(
            lambda: re.search(r"http://(127\.0\.0\.1:\d+)/metrics", (tmp_path / "err").read_text()), run
        )
        job = {"job_name": "ronde", "static_configs": [{"targets": [said[1]]}]}
        config = {"global": {"scrape_interval": "1s"}, "scrape_configs": [job]}
        (tmp_path / "prometheus.yml").write_text(yaml.safe_dump(config))
        asker = subprocess.Popen(
            [prometheus, "--config.file=prometheus.yml", "--web.listen-address=127.0.0.1:19090"],
            cwd=tmp_path, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip

        def ask(query: str) -> list[float]:
            url = f"http://127.0.0.1:19090/api/v1/query?{urllib.parse.urlencode({'query': query})}"
            try:
                with urllib.request.urlopen(url) as answer:
                    return [float(each["value"][1]) for each in json.load(answer)["data"]["result"]]
            except OSError:
                return []

        (before,) = until(lambda: ask('ronde_run_steps_total{rank="1"} > 10 and on () ronde_run_loss'), run)
        until(lambda: ask("ronde_run_checkpoints_total > 0"), run)
        pids = json.loads((tmp_path / "run/launch.json").read_text())["nodes"][0]["pids"]
        subprocess.run(["kill", "-9", str(pids["1"])], check=True)
        until(lambda: ask('ronde_run_restarts_total{reason="failure"} == 1'), run)
        until(lambda: ask('ronde_run_last_cause_info{rank="1"}'), run)
        (after,) = until(
            lambda: ask("ronde_run_steps_total{rank='1'} and on () ronde_run_checkpoints_total > 4"), run
        )
        assert after > before
        assert ask('resets(ronde_run_steps_total{rank="1"}[10m])') == [0]
        run.send_signal(signal.SIGTERM)
        run.wait(60)
    finally:
        for process in (run, asker):
            if process is not None:
                process.kill()
                process.wait()
    text = (tmp_path / "run/metrics.prom").read_text()
    done = subprocess.run([promtool, "check", "metrics"], input=text, capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def until(found: Callable[[], Any], run: subprocess.Popen[bytes]) -> Any:
    end = time.monotonic() + 120
    while not (answer := found()):
        assert time.monotonic() < end
        assert run.poll() is None
        time.sleep(0.2)
    return answer
