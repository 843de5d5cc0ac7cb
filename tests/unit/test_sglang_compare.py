"""compare.yml: names to runs to a page. The playbook itself is run, without an inventory."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import sglang_compare as documented
import yaml
from ansible.errors import AnsibleActionFail

from action_plugins import sglang_compare

ROOT = Path(__file__).resolve().parents[2]
DATA = Path(__file__).parent / "data"
OLD, NEW = (DATA / f"runs-1/{release}.json" for release in ("0.5.9", "0.5.23"))


def play(*argv: str, cwd: Path = ROOT, **variables: Any) -> tuple[int, str]:
    environment = {**os.environ, "ANSIBLE_CONFIG": str(ROOT / "ansible.cfg"), "ANSIBLE_NOCOLOR": "1", "COLUMNS": "400"}
    done = subprocess.run(
        [
            str(Path(sys.executable).parent / "ansible-playbook"),
            str(ROOT / "compare.yml"),
            "-e",
            json.dumps(variables),
            *argv,
        ],
        cwd=cwd,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    return done.returncode, done.stdout + done.stderr


def test_documentation_names_the_arguments() -> None:
    options = yaml.safe_load(documented.DOCUMENTATION)["options"]
    assert set(options) == sglang_compare.ActionModule._VALID_ARGS
    assert "sglang_compare_folder" in yaml.safe_load((ROOT / "playbooks/vars/names.yml").read_text())


def test_names() -> None:
    assert sglang_compare.wanted("a, b") == ["a", "b"] == sglang_compare.wanted(["a ", "b"])
    assert sglang_compare.wanted("a") == ["a"] == sglang_compare.wanted(["a"])
    for runs, said in (
        ([], "names nothing"),
        (" , ", "names nothing"),
        ({"a": 1}, "expected a list"),
        ([1, 2], "expected a list"),
    ):
        with pytest.raises(AnsibleActionFail, match=said):
            sglang_compare.wanted(runs)


def test_the_same_run_twice_and_unknown_names(tmp_path: Path) -> None:
    (tmp_path / "cpu_demo/20261129T185920Z-gpu-node").mkdir(parents=True)
    (tmp_path / "cpu_demo/20261129T185920Z-gpu-node/run.json").write_text(OLD.read_text())
    with pytest.raises(AnsibleActionFail, match="'latest' and 'cpu_demo/latest' are the same run"):
        sglang_compare.found(["latest", "cpu_demo/latest"], tmp_path)
    with pytest.raises(AnsibleActionFail, match="Did you mean cpu_demo/latest"):
        sglang_compare.found(["latest", "cpu_dmo/latest"], tmp_path)


def test_a_folder_that_takes_nothing(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(AnsibleActionFail, match="cannot be kept in .*sglang_compare_folder"):
        sglang_compare.write(tmp_path / "file/compare", {"compare.md": ""})


def test_the_playbook_from_anywhere(tmp_path: Path) -> None:
    for place, source in (("20261129T185920Z-gpu-node", OLD), ("20261130T185920Z-gpu-node", NEW)):
        (tmp_path / "results/cpu_demo" / place).mkdir(parents=True)
        (tmp_path / "results/cpu_demo" / place / "run.json").write_text(source.read_text())
    runs = ["cpu_demo/latest~1", "cpu_demo/latest"]
    code, told = play(cwd=tmp_path, sglang_compare_runs=runs, sglang_bench_results_dir=str(tmp_path / "results"))
    assert code == 0 and "changed=0" in told, told
    assert "max-running-requests" in told and "0.85" in told
    (folder,) = (tmp_path / "results/compare").iterdir()
    assert sorted(path.name for path in folder.iterdir()) == ["compare.html", "compare.json", "compare.md"]
    comparison = json.loads((folder / "compare.json").read_text())
    assert comparison["comparable"] and "max-running-requests" in (folder / "compare.html").read_text()
    page = told[told.index("****\n") + 5 : told.index("\nPage: ")].split("****\n")[-1]
    assert max(len(line) for line in page.splitlines() if " " in line.strip()) <= 80, page
    # Check mode shows and keeps nothing; a folder of one's own.
    code, told = play("--check", sglang_compare_runs=runs, sglang_bench_results_dir=str(tmp_path / "results"))
    assert code == 0 and "max-running-requests" in told and len(list((tmp_path / "results/compare").iterdir())) == 1
    (tmp_path / "file").write_text("")
    code, told = play(
        sglang_compare_runs=[str(OLD), "baseline:k2-thinking-nvfp4"], sglang_compare_folder=str(tmp_path / "file/x")
    )
    assert code != 0 and "cannot be compared" in told and "Name a folder that can be" in told


def test_one_run_gets_its_report_again(tmp_path: Path) -> None:
    folder = tmp_path / "results/cpu_demo/20261129T185920Z-gpu-node"
    folder.mkdir(parents=True)
    (folder / "run.json").write_text((DATA / "runs/h200-0.5.15.post1.json").read_text())
    (folder / "report.html").write_text("")
    variables: dict[str, Any] = {
        "sglang_compare_runs": ["cpu_demo/latest"],
        "sglang_bench_results_dir": str(tmp_path / "results"),
    }
    code, told = play("--check", **variables)
    assert code == 0 and "6138" in told and (folder / "report.html").read_text() == ""
    code, told = play(**variables)
    assert code == 0 and "changed=0" in told and "6138" in told and f"Page: {folder / 'report.html'}" in told, told
    assert "6,138" in (folder / "report.html").read_text() and "6138" in (folder / "report.md").read_text()
    assert {"charts", "report.html", "report.md", "rungs.csv", "run.json"} == {path.name for path in folder.iterdir()}
    assert len(list((folder / "charts").iterdir())) == 3 and not (tmp_path / "results/compare").exists()
    # A folder that takes nothing costs the files alone; another one can be named.
    (tmp_path / "file").write_text("")
    code, told = play(**variables, sglang_compare_folder=str(tmp_path / "file/x"))
    assert code != 0 and "6138" in told and "cannot be written" in told and "sglang_compare_folder" in told
    code, told = play(sglang_compare_runs=str(OLD), sglang_compare_folder=str(tmp_path / "named"))
    assert code == 0 and (tmp_path / "named/report.html").is_file() and "Only partly there" not in told, told


def test_published_figures_alone_have_no_report() -> None:
    with pytest.raises(AnsibleActionFail, match="'baseline:glm5-nvfp4' is published figures"):
        sglang_compare.found(["baseline:glm5-nvfp4"], ROOT / "results")


def test_the_playbook_without_names() -> None:
    code, told = play()
    assert code != 0 and "names nothing" in told
