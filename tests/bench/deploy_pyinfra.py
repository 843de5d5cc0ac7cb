"""The end state of `deploy.yml` on a host of tests/bench, as a user of pyinfra would write it. Run by tests/bench/performance.py.

Left out, since it has no counterpart: the lock, rules, the fit, the release's own parser, the proof, the record, the supervisor's
decisions. What is there is what makes a host serve, and what is looked at to know that it does.
"""

import json
from pathlib import Path

from pyinfra import host
from pyinfra.operations import apt, files, server, systemd

told = json.loads(Path(host.data.told).read_text())  # what the project's own deployment put on the host

server.shell(name="Look at the cards", commands=["! command -v nvidia-smi || nvidia-smi -L"])
apt.packages(name="Python's venv", packages=["python3", "ca-certificates"])
server.user(
    name="The server's user",
    user="sglang",
    home="/var/lib/sglang",
    shell="/usr/sbin/nologin",
    system=True,
    create_home=False,
    ensure_home=False,
)
for folder in ("/opt/sglang/releases", "/var/lib/sglang", "/var/lib/sglang/models"):
    files.directory(name=folder, path=folder)
files.put(name="The lock", src=told["lock"], dest="/var/lib/sglang/requirements.txt", mode="644")
server.shell(
    name="Packages by the lock",
    commands=[
        f"{told['uv']} pip sync --quiet --no-config --offline --require-hashes --python {told['release']}/venv "
        f"--no-index --find-links {told['wheels']} {told['release']}/requirements.txt"
    ],
)
for name in told["model_files"]:
    files.file(name=name, path=f"{told['model_path']}/{name}")
unit = files.put(name="The unit", src=told["unit"], dest="/etc/systemd/system/sglang.service", mode="644")
for path, source in told["files"].items():
    files.put(name=path, src=source, dest=path)
systemd.service(
    name="The server runs",
    service="sglang.service",
    running=True,
    enabled=True,
)
systemd.service(
    name="The server is the one of its unit",
    service="sglang.service",
    restarted=True,
    daemon_reload=True,
    _if=unit.did_change,
)
systemd.service(name="The timer runs", service="sglang-supervise.timer", running=True, enabled=True)
ASK = (
    "import sys, urllib.request as u; [u.urlopen(sys.argv[1] + path, timeout=60) for path in ('/health', '/v1/models')]"
)
server.shell(name="It is healthy", commands=[f'python3 -c "{ASK}" {told["url"]}'])
