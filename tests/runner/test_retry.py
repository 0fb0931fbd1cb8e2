"""What follows from a try that failed, as examples: no Ray, no replicas, no time."""

import pytest

from seesaw.runner.fleet.health import DEATHS_WHILE_LOADING, PoolHealth
from seesaw.runner.fleet.retry import FAILURES_IN_A_ROW, Failure, Next, RetryPolicy, Tries

ERROR = Failure.ERROR, True
DIED_ALONE = Failure.DIED, True
DIED_IN_COMPANY = Failure.DIED, False
NODE_LOST = Failure.NODE_LOST, True
UNFIXABLE = Failure.UNFIXABLE, True


def follow(failures, attempts: int = 3, failures_in_a_row: int = 0) -> tuple[list[Next], Tries]:
    policy, tries, verdicts = RetryPolicy(attempts, patience=3600), Tries(), []
    for failure, alone in failures:
        then, tries = policy.after(tries, failure, alone, failures_in_a_row)
        verdicts.append(then)
    return verdicts, tries


def test_errors_are_tried_again_anywhere_and_then_set_aside():
    verdicts, tries = follow([ERROR] * 3)
    assert verdicts == [Next.RETRY, Next.RETRY, Next.SET_ASIDE]
    assert tries == Tries(failed=3, counted=3)


def test_a_batch_that_was_alone_is_charged_with_its_replica_s_death():
    verdicts, tries = follow([DIED_ALONE] * 3)
    assert verdicts == [Next.RETRY_ALONE, Next.RETRY_ALONE, Next.SET_ASIDE]
    assert tries.counted == 3


def test_a_batch_in_company_is_charged_with_nothing_and_tried_again_alone():
    verdicts, tries = follow([DIED_IN_COMPANY] * 50)
    assert verdicts == [Next.RETRY_ALONE] * 50
    assert (tries.failed, tries.counted) == (50, 0)


def test_once_suspected_a_batch_stays_alone_also_after_an_error():
    verdicts, _ = follow([DIED_IN_COMPANY, ERROR, NODE_LOST])
    assert verdicts == [Next.RETRY_ALONE] * 3


def test_the_loss_of_a_node_is_charged_to_nobody_nine_times_and_counts_as_a_death_after_that():
    verdicts, tries = follow([NODE_LOST] * 9)
    assert verdicts == [Next.RETRY] * 9
    assert (tries.counted, tries.node_losses, tries.alone) == (0, 9, False)
    verdicts, tries = follow([NODE_LOST] * 12)
    assert verdicts[9:] == [Next.RETRY_ALONE, Next.RETRY_ALONE, Next.SET_ASIDE]
    assert (tries.counted, tries.node_losses) == (3, 9)


def test_what_no_retry_mends_ends_the_run_at_once():
    assert follow([UNFIXABLE])[0] == [Next.END_RUN]
    assert follow([ERROR, UNFIXABLE])[0] == [Next.RETRY, Next.END_RUN]


@pytest.mark.parametrize("failed", [ERROR, DIED_ALONE])
def test_after_many_failures_in_a_row_a_batch_is_tried_once_only(failed):
    assert follow([failed], failures_in_a_row=FAILURES_IN_A_ROW)[0] == [Next.SET_ASIDE]
    assert follow([failed], failures_in_a_row=FAILURES_IN_A_ROW - 1)[0] != [Next.SET_ASIDE]
    assert follow([NODE_LOST], failures_in_a_row=FAILURES_IN_A_ROW)[0] == [Next.RETRY]  # that was no try of its own


@pytest.mark.parametrize("attempts", [1, 2, 5])
def test_no_batch_is_set_aside_before_it_was_charged_as_often_as_the_config_says(attempts):
    failures = [DIED_IN_COMPANY, NODE_LOST, *[ERROR] * attempts]
    verdicts, tries = follow(failures, attempts)
    assert verdicts.index(Next.SET_ASIDE) == len(failures) - 1
    assert tries.counted == attempts


def test_deadly_batches_of_one_subject_are_no_fault_of_the_model_and_those_of_two_are():
    health = PoolHealth(attempts=1, in_flight=2)
    assert [health.batch_set_aside("chef", killed=True) for _ in range(7)] == [False] * 7
    assert health.batch_set_aside("nurse", killed=True)
    health.batch_done()
    assert not health.batch_set_aside("nurse", killed=True)
    assert health.failures_in_a_row == 1


def test_a_node_is_avoided_after_deaths_in_a_row_while_loading_there():
    health = PoolHealth(attempts=3, in_flight=2)
    deaths = [health.died_while_loading("n1") for _ in range(DEATHS_WHILE_LOADING)]
    assert deaths == [False] * (DEATHS_WHILE_LOADING - 1) + [True]
    assert not health.died_while_loading("n2")
    health.loaded("n1")
    assert not health.died_while_loading("n1")


def test_unblamed_deaths_stop_further_replicas_once_every_batch_in_flight_could_have_died_again():
    health = PoolHealth(attempts=3, in_flight=2)
    assert [health.died_unblamed(1) for _ in range(10)] == [False] * 9 + [True]
    health.batch_done()
    assert not health.died_unblamed(1)
