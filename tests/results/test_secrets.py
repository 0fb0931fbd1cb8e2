"""Secrets are masked by what they are, and not by what their variables are called."""

import base64
import os
import string

import pytest
from hypothesis import given
from hypothesis import strategies as st

from seesaw.results.secrets import secret_in, without_secrets, without_values

SECRETS = {
    "OPENAI_APIKEY": "oaikeyoaikeyoaikey",
    "MY_PAT": "ghp_abcdefghij0123456789ABCDEFGHIJ012345",
    "DB_PASS": "hunter2-and-more",
    "SOME_THING": "Zx9-quite-unguessable",
    "MY_JWT": "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiJtZSJ9.abcDEF123_-x",
    "WEBHOOK": "https://hooks.example.org/services/T00/B00/XXXXabcd",
    "AWS_SECRET_ACCESS_KEY": "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY",
    "TLS": "-----BEGIN PRIVATE KEY-----\nMIIEvQIBADANBgkqhkiG9w0BAQ\n-----END PRIVATE KEY-----",
}


@pytest.fixture(autouse=True)
def environment(monkeypatch):
    """No other variables than those of the test."""
    for name in list(os.environ):
        if name not in ("PATH", "HOME", "PYTEST_CURRENT_TEST"):
            monkeypatch.delenv(name)
    return monkeypatch


@pytest.mark.parametrize("name", SECRETS)
def test_what_an_engine_says_holds_no_value_of_a_variable_whatever_it_is_called(name, environment):
    environment.setenv(name, SECRETS[name])
    for line in SECRETS[name].splitlines():
        assert line not in without_values(f"refused: '{line}' is wrong")
    assert "refused: " in without_values(f"refused: '{SECRETS[name]}' is wrong")


@pytest.mark.parametrize("name", ["OPENAI_APIKEY", "MY_PAT", "DB_PASS", "AWS_SECRET_ACCESS_KEY"])
def test_seesaws_own_messages_hold_no_value_of_a_variable_that_is_called_a_secret(name, environment):
    environment.setenv(name, SECRETS[name])
    assert SECRETS[name] not in without_secrets(f"refused: {SECRETS[name]}")


@given(st.text(string.ascii_letters + string.digits + "-_/+", min_size=16, max_size=40), st.text(max_size=9), st.text())
def test_a_secret_in_base64_is_masked_wherever_it_begins(secret, before, after):
    os.environ["MY_TOKEN"] = secret
    try:
        for encode in (base64.b64encode, base64.urlsafe_b64encode):
            shown = without_secrets(encode(f"{before}{secret}{after}".encode()).decode())
            assert "***" in shown
    finally:
        del os.environ["MY_TOKEN"]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("CERTIFICATES", "/etc/ssl/certs/ca-certificates.crt"),
        ("SEARCHED", "/usr/local/bin:/usr/bin:/bin"),
        ("RELATIVE", "./models/pipeline"),
        ("PORTS", "6379,10001,8265,8000"),
        ("BYTES", "107374182400"),
        ("HEAD", "10.11.12.13:6379"),
        ("NODE", "ip-10-0-0-12.ec2.internal"),
        ("HF_ENDPOINT", "https://huggingface.co"),
        ("HOSTNAME", "a-node-of-the-cluster"),
        ("SLURM_JOB_NAME", "audit-of-five-models"),
        ("RAY_ADDRESS", "head-of-the-cluster"),
        ("SHORT", "ordinary"),
        ("GOOGLE_APPLICATION_CREDENTIALS", "/etc/passwd"),
    ],
)
def test_paths_numbers_addresses_and_ordinary_words_stay(name, value, environment):
    environment.setenv(name, value)
    message = f"cannot reach {value} now"
    assert without_values(message) == message


def test_a_token_of_ray_is_a_secret_though_other_variables_of_ray_are_not(environment):
    environment.setenv("RAY_AUTH_TOKEN", "0123456789abcdef" * 4)
    assert "0123456789abcdef" not in without_secrets("token " + "0123456789abcdef" * 4)


def test_a_config_is_refused_for_what_is_called_a_secret_and_for_nothing_else(environment):
    environment.setenv("EXPERIMENT", "audit-of-five-models")
    environment.setenv("MY_TOKEN", "correct-horse-battery")
    assert secret_in("name: audit-of-five-models") == ""
    assert secret_in("auth: correct-horse-battery") == "MY_TOKEN"
    assert without_secrets("name: audit-of-five-models") == "name: audit-of-five-models"
