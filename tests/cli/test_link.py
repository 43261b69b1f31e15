"""`laxity replay link`: a relay in a process of its own, and what it says."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys

import pytest

from scheduler.cli.main import main

PATIENCE_S = 30


def started(*words: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "scheduler.cli", "replay", "link", *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_it_relays_says_what_passed_and_ends_at_ctrl_c():
    with socket.create_server(("127.0.0.1", 0)) as far_door:
        place = f"127.0.0.1:{far_door.getsockname()[1]}"
        far_door.settimeout(PATIENCE_S)
        with started("--to", place, "--rtt-ms", "20", "--mbps", "50:100", "--json") as process:
            assert process.stdout is not None
            assert process.stderr is not None
            said = process.stderr.readline()
            assert said.endswith(f", to {place}\n")
            port = int(said.partition(",")[0].rpartition(":")[2])
            with socket.create_connection(("127.0.0.1", port), PATIENCE_S) as near:
                far, _ = far_door.accept()
                with far:
                    far.settimeout(PATIENCE_S)
                    near.sendall(b"there")
                    assert far.recv(5, socket.MSG_WAITALL) == b"there"
                    far.sendall(b"back")
                    assert near.recv(4, socket.MSG_WAITALL) == b"back"
                    process.send_signal(signal.SIGINT)
                    out, err = process.communicate(timeout=PATIENCE_S)
        assert process.returncode == 0
        assert err == ""
        last = json.loads(out.splitlines()[-1])
        assert (last["up_bytes"], last["down_bytes"], last["rtt_ms"]) == (5, 4, 20)
        assert (last["connections"], last["open"], last["out"]) == (1, 1, False)


def test_who_reads_the_figures_no_further_hears_nothing():
    with started("--to", "127.0.0.1:1", "--json") as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stderr.readline()
        process.stdout.readline()
        process.stdout.close()
        assert process.wait(PATIENCE_S) == 1
        assert process.stderr.read() == ""


def test_it_says_the_last_of_it_where_there_is_no_terminal():
    with started("--to", "127.0.0.1:1", "--outage", "0+60") as process:
        assert process.stderr is not None
        assert process.stderr.readline().startswith("Listening on tcp://127.0.0.1:")
        process.send_signal(signal.SIGTERM)
        _, err = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 0
    assert "OUTAGE  0 of 0 connections open" in err


def test_a_list_of_numbers_is_what_it_is_called(tmp_path):
    rates = tmp_path / "rates.txt"
    rates.write_text("8\n16\n")
    told = ["--from", str(rates), "--format", "mbps", "--interval-s", "0.5"]
    with started("--to", "127.0.0.1:1", *told) as process:
        assert process.stderr is not None
        assert process.stderr.readline().startswith("Listening on tcp://127.0.0.1:")
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 0


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--outage", "30"], "--outage is AT+FOR in seconds, as in 30+10, not '30'"),
        (["--mbps", "fast"], "--mbps is a number, or UP:DOWN as in 5:20, not 'fast'"),
        (["--loss", "2"], "loss is a share from 0 to below 1, not 2.0"),
        (["--format", "mbps"], "--format and --interval-s describe a recording"),
        (["--from", "nowhere.txt"], "nowhere.txt: can't be opened"),
        (["--listen", "tls://0.0.0.0:1"], "TLS passes as it is, so give tcp://0.0.0.0:1"),
        (["--listen", "unix:///no/such/folder"], "No such file or directory"),
    ],
)
def test_what_is_wrong_is_one_line(words, said, monkeypatch, capsys):
    monkeypatch.setattr("sys.argv", ["laxity", "replay", "link", "--to", "127.0.0.1:1", *words])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 2
    err = capsys.readouterr().err
    assert said in err
    assert len(err.splitlines()) == 1
