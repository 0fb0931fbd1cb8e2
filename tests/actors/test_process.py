"""What an engine prints into the log of its replica."""

import io

from seesaw.actors.process import MaskedStream


def test_what_an_engine_prints_has_no_secrets_and_no_escape_codes(monkeypatch):
    monkeypatch.setenv("ANY_NAME", "Zx9-quite-unguessable")
    log = io.StringIO()
    stream = MaskedStream(log)
    print("key Zx9-quite", end="", file=stream)
    print("-unguessable\nred \x1b[31m \u202eeverse", file=stream)
    print("10 %\r20 %\r\n30 %", file=stream, flush=True)
    assert log.getvalue() == "key ***\nred \\x1b[31m \\u202eeverse\n10 %\n20 %\n30 %\n"
