"""The least that homes can pay, by a linear program that knows everything in advance."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from flockrl.core.errors import UsageError, install
from flockrl.envs.grid.profiles import FLEXIBLE, SELL

if TYPE_CHECKING:
    from flockrl.envs.grid.homes import Homes


class Places(NamedTuple):
    """Where variables stand, [hours, N] each, and how many there are; the peak is the last one."""

    into: np.ndarray
    out: np.ndarray
    flexible: np.ndarray
    bought: np.ndarray
    sold: np.ndarray
    energy: np.ndarray

    @property
    def variables(self) -> int:
        return 6 * self.into.size + 1


def plan(env: Homes, state: Any) -> tuple[float, tuple[np.ndarray, np.ndarray]]:
    """From a state on: the least cost of all homes together until the end, and [N] kW into the batteries (negative:
    out) and of the flexible loads in this hour. It needs scipy.

    Variables for each hour and home: into, out, flexible, bought, sold, energy; one for the peak. Minimise sum price
    bought - SELL sold + peak_price (peak - the peak so far) such that bought - sold = load + flexible + into - out -
    solar, energy' = energy + efficiency into - out / efficiency, flexible load is done within its day, and the peak is
    at least the sum over homes of bought - sold.
    """
    try:
        from scipy.optimize import linprog  # type: ignore[import-untyped]
    except ImportError as error:
        raise UsageError(f"The bound of grid/homes needs scipy: {install('report')}.") from error

    start, n = int(state.t), env.n
    hours = env.steps - start
    if hours <= 0:
        return 0.0, (np.zeros(n), np.zeros(n))
    size, before = hours * n, float(state.peak)
    at = Places(*(np.arange(size).reshape(hours, n) + k * size for k in range(6)))
    none, price = np.zeros(size), np.repeat(np.asarray(state.profiles.price, float)[start:], n)
    costs = np.concatenate([none, none, none, price, np.full(size, -SELL), none, [env.peak_price]])
    limits = (env.power, env.power, FLEXIBLE, np.inf, np.inf, env.capacity)
    most = np.append(np.repeat(limits, size), np.inf)
    bounds = np.stack([np.append(np.zeros(6 * size), before), most], -1)
    found = linprog(costs, *_peak(at), *_balance(env, state, at), bounds, method="highs")
    if found.status != 0:
        raise UsageError(f"The linear program of grid/homes has no solution: {found.message}")
    x = found.x
    return float(found.fun - env.peak_price * before), (x[at.into[0]] - x[at.out[0]], x[at.flexible[0]])


def _matrix(terms: list[tuple[np.ndarray, np.ndarray, float]], shape: tuple[int, int]) -> Any:
    """A sparse matrix from (rows, columns, factor)."""
    from scipy.sparse import csr_matrix  # type: ignore[import-untyped]

    rows, columns, factors = (
        np.concatenate([np.broadcast_to(term[k], np.shape(term[0])).reshape(-1) for term in terms]) for k in range(3)
    )
    return csr_matrix((factors, (rows, columns)), shape=shape)


def _peak(at: Places) -> tuple[Any, np.ndarray]:
    """What all draw in an hour is at most the peak: a matrix [hours, V] and its right side."""
    hours = np.arange(len(at.into))
    each = np.broadcast_to(hours[:, None], at.into.shape)
    terms = [(each, at.bought, 1.0), (each, at.sold, -1.0), (hours, np.full(len(hours), at.variables - 1), -1.0)]
    return _matrix(terms, (len(hours), at.variables)), np.zeros(len(hours))


def _balance(env: Homes, state: Any, at: Places) -> tuple[Any, np.ndarray]:
    """Power and energy are conserved and flexible load is done: a matrix and its right side."""
    start, (hours, n) = int(state.t), at.into.shape
    power, store = at.into, at.into + at.into.size
    day = (start + np.arange(hours)) // 24 - start // 24
    done = 2 * at.into.size + np.arange((day[-1] + 1) * n).reshape(-1, n)
    terms = [(power, at.bought, 1.0), (power, at.sold, -1.0), (power, at.flexible, -1.0)]
    terms += [(power, at.into, -1.0), (power, at.out, 1.0)]
    terms += [(store, at.energy, 1.0), (store, at.into, -env.efficiency), (store, at.out, 1 / env.efficiency)]
    terms += [(store[1:], at.energy[:-1], -1.0), (done[day], at.flexible, 1.0)]
    load, solar = (np.asarray(x, float)[start:] for x in (state.profiles.load, state.profiles.solar))
    first = np.zeros((hours, n))
    first[0] = np.asarray(state.energy, float)
    owed = np.array(state.profiles.flexible, float)[start // 24 : start // 24 + len(done)]
    owed[0] = np.asarray(state.owed, float)
    right = np.concatenate([x.reshape(-1) for x in (load - solar, first, owed)])
    return _matrix(terms, (len(right), at.variables)), right
