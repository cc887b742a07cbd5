"""Stands in for gym: a pole on a cart and a pendulum, by the equations of their motion."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import numpy as np

from . import spaces
from .api import NEW

__all__ = ["ObservationWrapper", "Wrapper", "make", "spaces", "wrappers"]


class _Env:
    """One thing that moves: a state, and a step that changes it."""

    action_space: Any
    observation_space: Any
    steps_allowed = 200
    threshold = 0.0

    def __init__(self, name: str) -> None:
        self.spec = SimpleNamespace(
            id=name, reward_threshold=self.threshold, max_episode_steps=self.steps_allowed
        )
        self._draw = np.random.default_rng()
        self._steps = 0
        self.state = np.zeros(4)

    @property
    def unwrapped(self) -> _Env:
        return self

    def seed(self, seed: int | None = None) -> list[int | None]:
        self._draw = np.random.default_rng(seed)
        return [seed]

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        if seed is not None:
            self.seed(seed)
        self._steps = 0
        self.state = self._start()
        return (self._seen(), {}) if NEW else self._seen()

    def step(self, action: Any) -> Any:
        self._steps += 1
        reward, over = self._move(action)
        late = self._steps >= self.steps_allowed
        if NEW:
            return self._seen(), reward, over, late, {}
        return self._seen(), reward, over or late, {}

    def render(self, *args: Any, **kwargs: Any) -> None:
        pass

    def close(self) -> None:
        pass

    def _start(self) -> Any:
        raise NotImplementedError

    def _seen(self) -> Any:
        raise NotImplementedError

    def _move(self, action: Any) -> tuple[float, bool]:
        raise NotImplementedError


class _CartPole(_Env):
    """A pole of half a metre and 0.1 kg, balanced on a cart of 1 kg by pushes of 10 N."""

    steps_allowed, threshold = 500, 475.0
    x_threshold, theta_threshold_radians = 2.4, math.radians(12)

    def __init__(self, name: str) -> None:
        if name.endswith("v0"):
            self.steps_allowed, self.threshold = 200, 195.0
        super().__init__(name)
        self.action_space = spaces.Discrete(2)
        self.observation_space = spaces.Box(-np.inf, np.inf, (4,))

    def _start(self) -> Any:
        return self._draw.uniform(-0.05, 0.05, 4)

    def _seen(self) -> Any:
        return np.array(self.state, dtype=np.float32)

    def _move(self, action: Any) -> tuple[float, bool]:
        place, speed, angle, turn = self.state
        push = 10.0 if int(action) == 1 else -10.0
        pole, mass, half, tick = 0.1, 1.1, 0.5, 0.02
        thrust = (push + pole * half * turn**2 * math.sin(angle)) / mass
        lean = 9.8 * math.sin(angle) - math.cos(angle) * thrust
        bend = lean / (half * (4 / 3 - pole * math.cos(angle) ** 2 / mass))
        pull = thrust - pole * half * bend * math.cos(angle) / mass
        change = np.array([speed, pull, turn, bend])
        self.state = np.array([place, speed, angle, turn]) + tick * change
        return 1.0, bool(
            abs(self.state[0]) > self.x_threshold or abs(self.state[2]) > self.theta_threshold_radians
        )


class _Pendulum(_Env):
    """A rod of 1 m and 1 kg, swung up by a torque of at most 2 Nm."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.action_space = spaces.Box(-2.0, 2.0, (1,))
        self.observation_space = spaces.Box(-np.inf, np.inf, (3,))

    def _start(self) -> Any:
        return self._draw.uniform([-math.pi, -1.0], [math.pi, 1.0])

    def _seen(self) -> Any:
        angle, turn = self.state
        return np.array([math.cos(angle), math.sin(angle), turn], dtype=np.float32)

    def _move(self, action: Any) -> tuple[float, bool]:
        angle, turn = self.state
        torque = float(np.clip(np.asarray(action, dtype=np.float64).reshape(-1)[0], -2.0, 2.0))
        off = (angle + math.pi) % (2 * math.pi) - math.pi
        cost = off**2 + 0.1 * turn**2 + 0.001 * torque**2
        turn = float(np.clip(turn + 0.05 * (15.0 * math.sin(angle) + 3.0 * torque), -8.0, 8.0))
        self.state = np.array([angle + 0.05 * turn, turn])
        return -cost, False


def make(name: str, **options: Any) -> _Env:
    """The environment of that name."""
    kinds = {"CartPole": _CartPole, "Pendulum": _Pendulum}
    return kinds[name.partition("-")[0]](name)


class Wrapper:
    """An environment around another one, whose attributes it has."""

    def __init__(self, env: Any) -> None:
        self.env = env

    def __getattr__(self, name: str) -> Any:
        return getattr(self.env, name)


class ObservationWrapper(Wrapper):
    """One that changes what is seen."""

    def observation(self, observation: Any) -> Any:
        raise NotImplementedError

    def reset(self, **options: Any) -> Any:
        return self.observation(self.env.reset(**options))

    def step(self, action: Any) -> Any:
        seen, *rest = self.env.step(action)
        return self.observation(seen), *rest


from . import wrappers  # noqa: E402  (its classes need Wrapper)
