"""Calls of other people's code end at their deadline, in the main thread and in others."""

import signal
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from shardbench.base.deadline import Interrupted, interrupt, interrupts, within


def beside(call):
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(call).result()


def here(call):
    return call()


@pytest.mark.parametrize("where", [here, beside])
def test_what_is_in_time_is_given_and_what_it_raises_is_raised(where):
    assert where(lambda: within(30.0, lambda: 3)) == 3
    with pytest.raises(ZeroDivisionError):
        where(lambda: within(30.0, lambda: 1 // 0))
    with pytest.raises(SystemExit):
        where(lambda: within(30.0, lambda: exec("raise SystemExit(0)")))


@pytest.mark.parametrize("where", [here, beside])
def test_what_is_late_is_a_timeout(where):
    end = threading.Event()
    with pytest.raises(TimeoutError, match=r"took more than 0.2 s"):
        where(lambda: within(0.2, lambda: end.wait(60)))
    end.set()


def test_who_takes_the_interruption_for_its_own_is_interrupted_again():
    caught = []

    def stubborn():
        while True:
            try:
                time.sleep(60)
            except TimeoutError as error:
                caught.append(error)
                if len(caught) == 2:
                    raise

    with pytest.raises(TimeoutError):
        within(0.1, stubborn)
    assert len(caught) == 2


def test_somebody_elses_alarm_goes_on():
    rung = []
    before = signal.signal(signal.SIGALRM, lambda *_: rung.append(1))
    others = signal.setitimer(signal.ITIMER_REAL, 0.4)
    try:
        assert within(30.0, lambda: 3) == 3
        assert 0.0 < signal.getitimer(signal.ITIMER_REAL)[0] <= 0.4
        time.sleep(0.6)
        assert rung == [1]
    finally:
        signal.signal(signal.SIGALRM, before)
        signal.setitimer(signal.ITIMER_REAL, *others)


def test_ctrl_c_is_told_from_what_other_code_raises(monkeypatch):
    with pytest.raises(KeyboardInterrupt) as raised:
        within(30.0, lambda: exec("raise KeyboardInterrupt"))
    # A caller of the library: nobody could tell.
    assert interrupts(raised.value)
    before = {ending: signal.signal(ending, interrupt) for ending in (signal.SIGINT, signal.SIGTERM)}
    try:
        assert not interrupts(raised.value)
        with pytest.raises(Interrupted) as pressed:
            within(30.0, lambda: signal.raise_signal(signal.SIGINT))
        assert interrupts(pressed.value)
    finally:
        for ending, handler in before.items():
            signal.signal(ending, handler)
