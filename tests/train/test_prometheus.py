"""Prometheus itself: its tool checks and evaluates the rules, its server scrapes the exporter."""

import json
import random
import shutil
import socket
import subprocess
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from lablib.train import TRAINING_RULES, AlertRule, Alerts, Monitor, PrometheusExporter, prometheus_rules

needs_promtool = pytest.mark.skipif(
    not shutil.which("promtool"), reason="promtool is not installed (Debian: prometheus)"
)
needs_server = pytest.mark.skipif(not shutil.which("prometheus"), reason="Prometheus is not installed")


def promtool(*arguments: str) -> None:
    done = subprocess.run(["promtool", *arguments], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr


@needs_promtool
def test_promtool_accepts_the_rules_of_training(tmp_path):
    (tmp_path / "rules.yml").write_text(prometheus_rules(TRAINING_RULES))
    promtool("check", "rules", str(tmp_path / "rules.yml"))


words = st.text(st.characters(exclude_categories=["C", "Z"]), min_size=1, max_size=12)
any_rule = st.builds(
    AlertRule,
    st.from_regex(r"[a-zA-Z_:][a-zA-Z0-9_:]{0,12}", fullmatch=True),
    st.floats(allow_nan=False, allow_infinity=False),
    st.sampled_from(["above", "below"]),
    for_s=st.integers(0, 10**9).map(lambda ms: ms / 1000),
    name=words,
    severity=words,
)


@needs_promtool
@given(rules=st.lists(any_rule, min_size=1, max_size=30, unique_by=lambda rule: rule.name))
@settings(max_examples=10)
def test_promtool_accepts_any_rules(tmp_path_factory, rules):
    path = tmp_path_factory.mktemp("rules") / "rules.yml"
    path.write_text(prometheus_rules(rules), encoding="utf-8")
    promtool("check", "rules", str(path))


@needs_promtool
def test_prometheus_has_the_same_states_at_every_sample(tmp_path):
    """40 random series: its engine evaluates the generated rules, `Alerts` the same samples, every 15 s."""
    draws, every_s, length = random.Random(1), 15, 30
    rules = [AlertRule(f"m{i}", 2, draws.choice(["above", "below"]), for_s=15 * draws.randrange(5)) for i in range(40)]
    choices: list[Any] = [1, 2, 3, 3, "NaN", None]
    series = {rule.metric: draws.choices(choices, k=length) for rule in rules}
    for values in list(series.values())[::2]:  # longer runs, so that longer durations fire
        values[5:20] = [draws.choice([1, 3])] * 15
    alerts, expected = Alerts(rules), []
    for i in range(length):
        metrics = {name: float(v[i]) for name, v in series.items() if v[i] is not None}
        alerts.observe(i * every_s, metrics)
        states = alerts.states
        samples = [
            {"labels": f'ALERTS{{alertname="{r.name}",alertstate="{states[r.name]}",severity="warning"}}', "value": 1}
            for r in rules
            if states[r.name] != "inactive"
        ]
        expected.append({"expr": "ALERTS", "eval_time": f"{i * every_s}s", "exp_samples": samples})
    assert {state for row in expected for state in str(row).split('"') if state in ("pending", "firing")} == {
        "pending",
        "firing",
    }
    given_series = [
        {"series": name, "values": " ".join("stale" if v is None else str(v) for v in values)}
        for name, values in series.items()
    ]
    test = {"interval": f"{every_s}s", "input_series": given_series, "promql_expr_test": expected}
    plain = {"rule_files": ["rules.yml"], "evaluation_interval": f"{every_s}s", "tests": [test]}
    (tmp_path / "rules.yml").write_text(prometheus_rules(rules))
    (tmp_path / "test.yml").write_text(yaml.safe_dump(plain))
    promtool("test", "rules", str(tmp_path / "test.yml"))


@needs_promtool
def test_prometheus_ends_a_condition_in_a_gap_of_more_than_five_minutes_too(tmp_path):
    rule = AlertRule("loss", 10, for_s=600)
    alerts = Alerts([rule])
    events = [event for time_s in (0, 480) for event in alerts.observe(time_s, {"loss": 11})]
    assert [(event.time_s, event.state) for event in events] == [(0, "pending"), (300, "inactive"), (480, "pending")]
    pending = [{"labels": 'ALERTS{alertname="LossAbove",alertstate="pending",severity="warning"}', "value": 1}]
    expected = [
        {"expr": "ALERTS", "eval_time": f"{time_s}s", "exp_samples": samples}
        for time_s, samples in ((0, pending), (240, pending), (360, []), (420, []), (480, pending))
    ]
    series = [{"series": "loss", "values": "11 _x7 11"}]  # no sample, and no mark of a failed scrape
    test = {"interval": "60s", "input_series": series, "promql_expr_test": expected}
    (tmp_path / "rules.yml").write_text(prometheus_rules([rule]))
    plain = {"rule_files": ["rules.yml"], "evaluation_interval": "60s", "tests": [test]}
    (tmp_path / "test.yml").write_text(yaml.safe_dump(plain))
    promtool("test", "rules", str(tmp_path / "test.yml"))


def answer(url: str) -> str:
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))  # no proxy for loopback
    with opener.open(url, timeout=5) as response:
        return response.read().decode()


def test_the_exporter_serves_the_latest_sample_until_it_is_stale():
    now_s = [0.0]
    exporter = PrometheusExporter(stale_s=60, clock=lambda: now_s[0])
    url = f"http://127.0.0.1:{exporter.port}/metrics"
    with Monitor(writers=[exporter]) as monitor:
        assert "\nloss" not in answer(url)
        monitor.record({"loss": 3.5, "throughput": 900}, time_s=0)
        assert "\nloss 3.5\n" in answer(url) and "\nthroughput 900.0\n" in answer(url)
        monitor.record({"loss": float("nan")}, time_s=1)
        assert "\nloss NaN\n" in answer(url) and "throughput" not in answer(url)
        now_s[0] = 61.0
        assert "loss" not in answer(url)
    with pytest.raises(OSError):
        answer(url)


def test_a_port_that_is_taken_is_an_error():
    exporter = PrometheusExporter()
    try:
        with pytest.raises(OSError):
            PrometheusExporter(exporter.port)
    finally:
        exporter.close()


@contextmanager
def server(folder: Path, target: int) -> Iterator[str]:
    """A Prometheus on loopback that scrapes every second; its address."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    job = {"job_name": "training", "static_configs": [{"targets": [f"127.0.0.1:{target}"]}]}
    every = {"scrape_interval": "1s", "scrape_timeout": "1s", "evaluation_interval": "1s"}
    config = {"global": every, "rule_files": [str(folder / "rules.yml")], "scrape_configs": [job]}
    (folder / "prometheus.yml").write_text(yaml.safe_dump(config))
    command = ["prometheus", f"--config.file={folder / 'prometheus.yml'}", f"--web.listen-address={address}"]
    with open(folder / "log", "wb") as log:
        process = subprocess.Popen([*command, f"--storage.tsdb.path={folder / 'data'}"], stdout=log, stderr=log)
    try:
        yield f"http://{address}"
    finally:
        process.terminate()
        process.wait(30)


def wait_for(found: Callable[[], Any]) -> Any:
    """The first answer that is not empty."""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        try:
            if answered := found():
                return answered
        except OSError:  # it is still starting
            pass
        time.sleep(0.2)
    raise AssertionError("no answer in 60 s")


@needs_server
@pytest.mark.slow
def test_prometheus_scrapes_the_exporter_and_fires_the_generated_alert(tmp_path):
    rules = [AlertRule("loss", 10, for_s=1, severity="critical"), AlertRule("throughput", 500, "below")]
    (tmp_path / "rules.yml").write_text(prometheus_rules(rules))
    exporter = PrometheusExporter()
    with Monitor(rules, [exporter]) as monitor, server(tmp_path, exporter.port) as url:

        def alerts() -> dict[str, str]:
            found = json.loads(answer(f"{url}/api/v1/alerts"))["data"]["alerts"]
            return {one["labels"]["alertname"]: one["state"] for one in found}

        monitor.record({"loss": 11, "throughput": 900})
        wait_for(lambda: alerts() == {"LossAbove": "firing"})
        (scraped,) = json.loads(answer(f"{url}/api/v1/query?query=loss"))["data"]["result"]
        assert scraped["value"][1] == "11"
        monitor.record({"throughput": 100})  # the loss is missing
        wait_for(lambda: alerts() == {"ThroughputBelow": "firing"})
