"""What an engine raised travels as plain text, and says what is to be done."""

import io
import pickle
import threading
import time
import urllib.error
from email.message import Message
from email.utils import formatdate

import pytest

from seesaw.actors.engine_errors import EngineError, kind_of, plain_error, plain_errors
from seesaw.results.errors import ConfigError, EnvironmentFault, TryLater


class Response:
    """What requests and httpx keep with an error."""

    def __init__(self, status: int, **headers: str) -> None:
        self.status_code, self.headers, self._lock = status, headers, threading.Lock()


class ClientError(Exception):
    """An error of an HTTP client, which cannot be pickled."""

    def __init__(self, message: str, **attributes: object) -> None:
        super().__init__(message)
        self._socket = threading.Lock()
        vars(self).update(attributes)


def urllib_error(status: int, **headers: str) -> urllib.error.HTTPError:
    message = Message()
    for name, value in headers.items():
        message[name.replace("_", "-")] = value
    return urllib.error.HTTPError("http://127.0.0.1/", status, "No", message, io.BytesIO(b"body"))


def sent(error: Exception) -> Exception:
    """As it arrives in another process."""
    return pickle.loads(pickle.dumps(plain_error(error)))


@pytest.mark.parametrize(
    ("error", "seconds"),
    [
        (TryLater("the quota of this minute is used up", 7), 7),
        (TryLater("soon"), None),
        (urllib_error(429, Retry_After="20"), 20),
        (urllib_error(503), None),
        (ClientError("slow down", status_code=429), None),
        (ClientError("slow down", response=Response(429, **{"Retry-After": "1.5"})), 1.5),
        (ClientError("overloaded", status_code=529), None),
        (ClientError("maintenance", response=Response(500, **{"Retry-After": "60"})), 60),
        (ClientError("slow down", status=429, retry_after=3), 3),
        (ClientError("throttled", response={"ResponseMetadata": {"HTTPStatusCode": 429}}), None),
        (RuntimeError("429 Too Many Requests: rate limit reached, retry after 20 s"), 20),
        (RuntimeError("HTTP 503: unavailable"), None),
        (RuntimeError("Error code: 429 - {'error': {'message': 'slow'}}"), None),
    ],
)
def test_a_service_that_asks_for_patience_is_known_whatever_the_client(error, seconds):
    later = sent(error)
    assert type(later) is TryLater
    assert later.seconds == seconds


def test_a_date_to_come_back_at_counts_from_now():
    later = sent(urllib_error(429, Retry_After=formatdate(time.time() + 90, usegmt=True)))
    assert 80 < later.seconds <= 90
    assert sent(urllib_error(429, Retry_After=formatdate(time.time() - 90, usegmt=True))).seconds == 0
    assert sent(urllib_error(429, Retry_After="soon")).seconds is None


@pytest.mark.parametrize(
    ("error", "what"),
    [
        (urllib_error(401), "lets nobody in.*check the key"),
        (ClientError("forbidden", response=Response(403)), "lets nobody in"),
        (ClientError("payment required", status_code=402), "wants to be paid"),
        (ClientError("Error", status_code=429, body={"code": "insufficient_quota"}), "wants to be paid"),
    ],
)
def test_a_service_that_lets_nobody_in_ends_the_run_and_says_what_to_do(error, what):
    fault = sent(error)
    assert type(fault) is EnvironmentFault
    with pytest.raises(EnvironmentFault, match=what):
        raise fault


def test_any_other_error_arrives_as_the_name_of_its_class_and_its_text():
    failed = sent(ClientError("the image is too large", status_code=400))
    assert (type(failed), kind_of(failed), str(failed)) == (EngineError, "ClientError", "the image is too large")
    assert str(sent(ClientError(""))) == "ClientError"
    assert kind_of(ValueError("no")) == "ValueError"


@pytest.mark.parametrize("text", ["4290 pixels", "took 429 s", "port 503 is closed", "the prompt has 429 tokens"])
def test_a_number_in_a_message_is_no_status(text):
    assert type(sent(RuntimeError(text))) is EngineError


def test_errors_of_seesaw_stay_what_they_are_and_subclasses_of_a_user_become_them():
    class MyQuota(TryLater):
        pass

    class MyConfig(ConfigError):
        pass

    assert type(sent(EnvironmentFault("no weights"))) is EnvironmentFault
    assert type(sent(MyQuota("later", 5))) is TryLater
    assert sent(MyQuota("later", 5)).seconds == 5
    assert type(sent(MyConfig("wrong"))) is ConfigError


def test_a_secret_in_a_message_does_not_travel(monkeypatch):
    monkeypatch.setenv("MY_SERVICE_TOKEN", "correct-horse-battery")
    assert "correct" not in str(sent(RuntimeError("bad token correct-horse-battery")))
    assert "correct" not in str(sent(TryLater("bad token correct-horse-battery")))


def test_who_raises_because_of_a_refused_image_is_told_of_the_better_way():
    refused = sent(RuntimeError("400 content_policy_violation: rejected by our safety system"))
    assert "seesaw.Withheld(None, 'flagged')" in str(refused)


def test_a_block_raises_plain_errors():
    with pytest.raises(EngineError, match="no room"), plain_errors():
        raise ClientError("no room")
