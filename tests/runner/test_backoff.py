"""How long a model is left alone when its service asks for patience: no Ray, no clock."""

import itertools
import random

import pytest

from seesaw.runner.fleet.backoff import FIRST_PAUSE, LONGEST_PAUSE, Backoff, pause_seconds
from seesaw.runner.fleet.retry import Failure, Next, RetryPolicy, Tries


def test_pauses_double_from_seconds_to_two_minutes():
    grown = [pause_seconds(n, None, 0.5) for n in range(9)]
    assert grown == [2, 4, 8, 16, 32, 64, 120, 120, 120]


def test_a_pause_varies_by_a_quarter_and_is_never_shorter_than_what_is_asked_for():
    chances = [0.0, 0.25, 0.999]
    assert [pause_seconds(1, None, c) for c in chances] == pytest.approx([3, 3.5, 5], abs=0.01)
    for c in chances:
        assert 20 <= pause_seconds(9, 20.0, c) <= 20 + FIRST_PAUSE
    assert pause_seconds(0, 0.0, 0.5) == FIRST_PAUSE  # a service that asks for no seconds is left alone all the same


def test_batches_that_were_sent_before_a_pause_do_not_lengthen_it():
    backoff = Backoff()
    assert backoff.turned_away(10.0, sent=9.0, asked=None, chance=0.5) == 2
    assert [backoff.turned_away(10.5, sent=9.0, asked=None, chance=0.5) for _ in range(3)] == [0, 0, 0]
    assert backoff.left(10.5) == 1.5
    assert backoff.turned_away(12.5, sent=12.1, asked=None, chance=0.5) == 4
    assert backoff.left(12.5) == 4
    assert backoff.left(17.0) == 0


def test_what_a_service_asks_for_lengthens_a_pause_that_is_on():
    backoff = Backoff()
    backoff.turned_away(0.0, sent=0.0, asked=None, chance=0.5)
    assert backoff.turned_away(1.0, sent=-1.0, asked=30.0, chance=0.0) == 30
    assert backoff.left(1.0) == 30
    assert backoff.turned_away(2.0, sent=-1.0, asked=5.0, chance=0.0) == 0
    assert backoff.left(2.0) == 29


def test_a_batch_that_is_done_starts_the_count_again():
    backoff = Backoff()
    backoff.turned_away(0.0, sent=0.0, asked=None, chance=0.5)
    backoff.turned_away(3.0, sent=2.5, asked=None, chance=0.5)
    assert backoff.stalled(3.0) == 7  # the pause that is on counts
    backoff.done()
    assert backoff.stalled(60.0) == 0
    assert backoff.turned_away(60.0, sent=60.0, asked=None, chance=0.5) == 2


def follow(seconds_of_quota: float, patience: float) -> tuple[float, int, Next]:
    """One batch against a service that does nothing for so long: the end, the calls that it got, and the verdict."""
    backoff, policy, tries, chance = Backoff(), RetryPolicy(4, patience), Tries(), random.Random(1)
    now = 0.0
    for calls in itertools.count(1):
        if now >= seconds_of_quota:
            return now, calls, Next.RETRY
        backoff.turned_away(now, now, None, chance.random())
        verdict, tries = policy.after(tries, Failure.LATER, stalled=backoff.stalled(now))
        if verdict is not Next.RETRY_LATER:
            return now, calls, verdict
        assert tries.counted == 0
        now += backoff.left(now)


def test_a_quota_of_twenty_seconds_or_of_half_an_hour_is_waited_for_with_few_calls():
    for quota, most in ((20, 8), (1800, 25)):
        ended, calls, verdict = follow(quota, patience=3600)
        assert verdict is Next.RETRY
        assert quota <= ended <= quota + 1.25 * LONGEST_PAUSE
        assert calls <= most


def test_a_service_that_never_comes_back_ends_the_run_within_the_time_that_a_run_waits():
    ended, _, verdict = follow(float("inf"), patience=600)
    assert verdict is Next.END_RUN
    assert 600 - 1.25 * LONGEST_PAUSE <= ended <= 600


def test_a_service_that_asks_for_a_day_ends_the_run_at_once():
    backoff = Backoff()
    backoff.turned_away(0.0, 0.0, asked=86400.0, chance=0.5)
    verdict, _ = RetryPolicy(4, 3600).after(Tries(), Failure.LATER, stalled=backoff.stalled(0.0))
    assert verdict is Next.END_RUN


def test_one_batch_that_is_always_turned_away_while_others_are_done_is_set_aside():
    policy = RetryPolicy(4, 3600)
    assert policy.after(Tries(waited=3600), Failure.LATER, stalled=10)[0] is Next.RETRY_LATER
    assert policy.after(Tries(waited=3700), Failure.LATER, stalled=10)[0] is Next.SET_ASIDE
