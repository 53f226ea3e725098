"""When the worker may work and how much at once: pure decisions from what the engine's traffic looks like.

An agent's request that comes while a step is in flight waits for the rest of it, since an engine's step cannot be
broken off. So steps are short where agents are about, and there are none in the pauses that agents usually make
between two requests. What is left is the request that ends a longer pause.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from agentcache.warm.job import Urgency

URGENT = Urgency.LEARNED
"""The last class that does not wait for a longer pause."""
MIN_STEP_TOKENS, MAX_STEP_TOKENS = 64, 16_384
FIRST_STEP_TOKENS = 256
_QUIET_STEP_S, _URGENT_STEP_S, _SHARED_STEP_S = 1.0, 0.4, 0.12
_SHARED_FOR_S = 60.0
"""So long after an agent's request the engine counts as shared with it."""
_PAUSE_SHARE = 0.9
"""Of an agent's pauses: how many are over before the worker takes one for longer."""
_MIN_PAUSE_S, _MAX_PAUSE_S = 0.25, 10.0
_LONG_S = 30.0
"""A longer pause is a person thinking, and says nothing about an agent's rhythm."""
_SMOOTHING = 0.3


@dataclass(frozen=True, slots=True)
class Traffic:
    """Requests but the worker's own, as the server counts them.

    running: not answered yet; requests: answered since the server started
    idle_s: seconds since the last one was answered, infinite if there was none
    pauses_s: the last pauses between the end of one and the beginning of the next
    """

    running: int = 0
    requests: int = 0
    idle_s: float = float("inf")
    pauses_s: tuple[float, ...] = ()


class Pace:
    """What the worker does with the traffic. `rate`: tokens a second the engine computes for it, as measured."""

    def __init__(self) -> None:
        self.rate = 0.0

    def observe(self, tokens: int, seconds: float) -> None:
        """A step of `tokens` took so long."""
        if tokens < MIN_STEP_TOKENS // 2 or seconds <= 0:
            return  # its time is overhead
        rate = tokens / seconds
        self.rate = rate if not self.rate else self.rate + _SMOOTHING * (rate - self.rate)

    def step_tokens(self, traffic: Traffic, urgency: Urgency) -> int:
        """Most new tokens of the next step, whose most urgent job is of this class."""
        if not self.rate:
            return FIRST_STEP_TOKENS
        if traffic.idle_s > _SHARED_FOR_S:
            # Edits come in rows: the next one does not wait long for what the last one left to do.
            seconds = _URGENT_STEP_S if urgency == Urgency.REFRESH else _QUIET_STEP_S
        else:
            seconds = _URGENT_STEP_S if urgency <= URGENT else _SHARED_STEP_S
        return int(min(MAX_STEP_TOKENS, max(MIN_STEP_TOKENS, self.rate * seconds)))

    def goes(self, traffic: Traffic, urgency: Urgency) -> int:
        """How many goes may be in flight: two keep the engine busy while the next is prepared and the last is stored.

        One where agents are about, who would wait for both, and where an edit may follow this one.
        """
        return 2 if traffic.idle_s > _SHARED_FOR_S and URGENT < urgency != Urgency.REFRESH else 1

    def wait_s(self, traffic: Traffic, urgency: Urgency) -> float:
        """Seconds until a job of this class may go on if no request comes; 0: now. Only sensible while none runs.

        What is asked for next goes at once: the request that asks for it would wait longer for it to be computed.
        """
        if urgency <= URGENT:
            return 0.0
        return max(0.0, usual_pause_s(traffic.pauses_s) - traffic.idle_s)


def usual_pause_s(pauses_s: Sequence[float]) -> float:
    """The pause that most of an agent's pauses do not exceed, within bounds."""
    rhythm = sorted(pause for pause in pauses_s if pause <= _LONG_S)
    if not rhythm:
        return _MIN_PAUSE_S
    most = rhythm[min(len(rhythm) - 1, int(_PAUSE_SHARE * len(rhythm)))]
    return min(_MAX_PAUSE_S, max(_MIN_PAUSE_S, 1.1 * most))
