"""Three fields on one line: trees of a forest, ants of a colony, heads of a layer.

Replicates are (R, H, m): R independent runs, H agents (trees, ants, heads), m quantities that
each agent estimates. With V the mean variance of an agent and rho the mean covariance of two
agents over V, the mean of the H agents has variance V (rho + (1 - rho) / H).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.stats import norm, qmc
from sklearn import config_context
from sklearn.tree import DecisionTreeRegressor
from sklearn.utils import check_random_state

from mhanw_core.designs import replicate
from mhanw_core.regression import (
    Array,
    finite_array,
    number_within,
    positive_number,
    whole_number,
)


def _replicates(name: str, value: ArrayLike) -> Array:
    x = finite_array(name, value).astype(np.float64)
    if x.ndim != 3 or len(x) < 3 or x.shape[1] < 2:
        raise ValueError(
            f"{name} has shape {x.shape}; expected (R, n_agents, m) with at least three "
            "replicates of at least two agents."
        )
    return x


# --- The line --------------------------------------------------------------------------------


@dataclass(frozen=True)
class LineCheck:
    """What half A predicts for the variance of the mean agent, and what half B measures.

    Attributes
    ----------
    n_agents : int
    variance, correlation
        V and rho of the agents, from half A.
    predicted, independent
        V (rho + (1 - rho) / H), and what it would be were rho zero, V / H.
    measured
        Variance of the mean agent, from half B.
    z, independent_z
        (measured - predicted) and (measured - independent), in their standard errors.

    A field ``..._se`` is the jackknife standard error of the one before it.
    """

    n_agents: int
    variance: float
    variance_se: float
    correlation: float
    correlation_se: float
    predicted: float
    predicted_se: float
    independent: float
    independent_se: float
    measured: float
    measured_se: float

    @property
    def z(self) -> float:
        return (self.measured - self.predicted) / np.hypot(self.measured_se, self.predicted_se)

    @property
    def independent_z(self) -> float:
        return (self.measured - self.independent) / np.hypot(self.measured_se, self.independent_se)


def _moments(x: Array) -> tuple[Array, Array]:
    """Mean variance of an agent, variance of the mean agent: whole first, then one left out."""
    n = len(x)
    parts = []
    for agents in (x, x.mean(axis=1, keepdims=True)):
        squares = np.square(agents - agents.mean(axis=0)).mean(axis=(1, 2))
        left_out = (squares.sum() - squares * n / (n - 1)) / (n - 2)
        parts.append(np.concatenate([[squares.sum() / (n - 1)], left_out]))
    return parts[0], parts[1]


def _jackknife(values: Array) -> tuple[float, float]:
    """Estimate and standard error from [whole, one left out, ...]."""
    rest = values[1:]
    return float(values[0]), float(np.sqrt((len(rest) - 1) * rest.var()))


def line_check(half_a: ArrayLike, half_b: ArrayLike, n_known: int | None = None) -> LineCheck:
    """Predict the variance of the mean agent in one half of the replicates, measure it in another.

    Within one half the line is an identity: with all agents known, `predicted` equals the
    variance of half A's mean agent whatever the agents do. Across halves it asks only that V
    and rho hold in fresh replicates; what it can refute is `independent`. With `n_known` below
    H, V and rho come from the first `n_known` agents, and the check also asks that the others
    are like them, which exchangeable agents are.

    Parameters
    ----------
    half_a, half_b : (R, H, m) and (R', H, m)
        Independent replicates, at least three each.
    n_known : int, optional
        Agents of half A that are looked at, 2 to H; all by default.

    Returns
    -------
    LineCheck

    Raises
    ------
    ValueError
        If shapes do not match, an entry is not finite, or no known agent ever varies.

    References
    ----------
    Hastie, Tibshirani and Friedman (2009), equations 15.1 and 15.5-15.9; Efron and Stein (1981)
    for the jackknife.
    """
    a, b = _replicates("half_a", half_a), _replicates("half_b", half_b)
    if a.shape[1:] != b.shape[1:]:
        raise ValueError(
            f"half_a has shape {a.shape} and half_b {b.shape}; agents and quantities must agree."
        )
    n_agents = a.shape[1]
    known = n_agents if n_known is None else whole_number("n_known", n_known, 2)
    if known > n_agents:
        raise ValueError(f"n_known is {known}, but there are {n_agents} agents.")
    variance, mean_variance = _moments(a[:, :known])
    if not (variance > 0).all():
        raise ValueError("the agents of half_a never vary; their correlation is not defined.")
    rho = (known * mean_variance / variance - 1) / (known - 1)
    predicted = variance * (rho + (1 - rho) / n_agents)
    columns = (variance, rho, predicted, variance / n_agents, _moments(b)[1])
    return LineCheck(n_agents, *(number for c in columns for number in _jackknife(c)))


def halves(replicates: ArrayLike) -> tuple[Array, Array]:
    """Split (R, H, m) replicates into a first and a second half, for `line_check`."""
    x = _replicates("replicates", replicates)
    return x[: len(x) // 2], x[len(x) // 2 :]


def shuffle_agents(replicates: ArrayLike, rng: np.random.Generator) -> Array:
    """Deal every agent's replicates out anew, each agent by itself: the control with rho = 0.

    Takes and returns (R, H, m). Each agent keeps its distribution and loses its company, so
    the variance of the mean falls, or rises, to V / H. A ValueError as `line_check`.
    """
    x = _replicates("replicates", replicates)
    order = rng.permuted(np.tile(np.arange(len(x))[:, None], x.shape[1]), axis=0)
    return np.asarray(np.take_along_axis(x, order[:, :, None], axis=0))


# --- Forest ----------------------------------------------------------------------------------

N_FEATURES = 10  # of Friedman's first design; the last five do not matter


def friedman1(x: Array) -> Array:
    """Friedman's first regression function, (..., 10) in the unit cube to (...).

    References
    ----------
    Friedman (1991).
    """
    bend = 10 * np.sin(np.pi * x[..., 0] * x[..., 1]) + 20 * np.square(x[..., 2] - 0.5)
    return np.asarray(bend + 10 * x[..., 3] + 5 * x[..., 4])


def tree_predictions(
    x: Array,
    y: Array,
    x_query: Array,
    state: int | np.random.RandomState,
    max_features: int,
    min_samples_leaf: int,
) -> Array:
    """Predictions, (m,), of one tree of scikit-learn's random forest, on a bootstrap sample.

    `x` and `x_query` are float32. With a seed it is, prediction for prediction, the tree of
    that `random_state` in a `RandomForestRegressor`; with a stream it takes a third of the time.
    """
    drawn = check_random_state(state).randint(0, len(x), len(x))
    counts = np.bincount(drawn, minlength=len(x)).astype(np.float64)
    tree = DecisionTreeRegressor(
        max_features=max_features, min_samples_leaf=min_samples_leaf, random_state=state
    )
    tree.fit(x, y, sample_weight=counts, check_input=False)
    return np.asarray(tree.tree_.predict(x_query)[:, 0])


def _forest(
    stream: np.random.Generator, n_trees: int, n_sets: int, n_train: int, *of_tree: int
) -> Array:
    """Predictions, (n_trees, 20), of trees that share one fresh training set or have one each."""
    x_query = qmc.Halton(N_FEATURES, scramble=False).random(21)[1:].astype(np.float32)
    x = stream.random((n_sets, n_train, N_FEATURES), dtype=np.float32)
    y = friedman1(x.astype(np.float64)) + stream.standard_normal((n_sets, n_train))
    state = np.random.RandomState(stream.bit_generator)  # scikit-learn knows no Generator
    own = [h % n_sets for h in range(n_trees)]
    return np.stack([tree_predictions(x[s], y[s], x_query, state, *of_tree) for s in own])


def forest_replicates(
    rng: np.random.Generator,
    max_features: int,
    n_trees: int = 20,
    n_train: int = 100,
    n_replicates: int = 200,
    min_samples_leaf: int = 3,
    shared_training_set: bool = True,
    n_jobs: int = 1,
) -> Array:
    """Predictions of every tree of random forests, each forest with a fresh training set.

    Training sets are Friedman's first design with noise of standard deviation 1, queries the
    first 20 points of a Halton sequence. Over replicates, two trees of a forest share their
    training set and nothing else, so their correlation is the sampling correlation that rules
    the variance of the forest.

    Parameters
    ----------
    rng : Generator
    max_features : int
        Features tried at each split, 1 to 10: the fewer, the less alike the trees.
    n_trees, n_train, n_replicates, min_samples_leaf : int
    shared_training_set : bool
        If False, every tree has a training set of its own: the control with rho = 0.
    n_jobs : int
        Processes; the result does not depend on it.

    Returns
    -------
    (n_replicates, n_trees, 20) array

    Raises
    ------
    ValueError
        If a number is out of range.

    References
    ----------
    Breiman (2001); Hastie, Tibshirani and Friedman (2009), 15.5-15.9; Friedman (1991).
    """
    if whole_number("max_features", max_features, 1) > N_FEATURES:
        raise ValueError(f"max_features is {max_features}; the design has {N_FEATURES} features.")
    whole_number("n_trees", n_trees, 1)
    whole_number("n_train", n_train, 2 * whole_number("min_samples_leaf", min_samples_leaf, 1))
    n_sets = 1 if shared_training_set else n_trees

    def draw(stream: np.random.Generator, size: int) -> Array:
        with config_context(assume_finite=True, skip_parameter_validation=True):
            grown = [
                _forest(stream, n_trees, n_sets, n_train, max_features, min_samples_leaf)
                for _ in range(size)
            ]
        return np.stack(grown)

    result = replicate(draw, n_replicates, rng, batch_size=10, n_jobs=n_jobs)
    assert isinstance(result, np.ndarray)
    return result


# --- Ants that choose a nest -----------------------------------------------------------------


@dataclass(frozen=True)
class NestChoice:
    """What the scouts of R colonies assessed, and what the colonies chose.

    Attributes
    ----------
    estimates : (R, n_scouts, 1)
        Each scout's estimate of the quality of the best site less that of the runner-up.
    votes : (R, n_scouts)
        The site each scout commits to, in order of arrival.
    choice : (R,)
        The first site with a quorum.
    best : int
        The site of highest quality.
    """

    estimates: Array
    votes: NDArray[np.integer]
    choice: NDArray[np.integer]
    best: int


def _sources(
    rng: np.random.Generator, appeal: Array, led: NDArray[np.bool_], preference: float
) -> NDArray[np.integer]:
    """Whose assessment each scout holds: its own or, if led, that of an earlier scout."""
    n_colonies, n_scouts = appeal.shape
    colony = np.arange(n_colonies)
    source = np.tile(np.arange(n_scouts), (n_colonies, 1))
    for h in range(1, n_scouts):
        # the largest of log weight + Gumbel noise is a draw in proportion to the weights
        pull = preference * appeal[colony[:, None], source[:, :h]] + rng.gumbel(
            size=(n_colonies, h)
        )
        leader = source[colony, pull.argmax(axis=1)]
        source[:, h] = np.where(led[:, h], leader, h)
    return source


def _first_quorum(votes: NDArray[np.integer], n_sites: int, quorum: int) -> NDArray[np.integer]:
    """Site of the vote, in order of arrival, that first completes a quorum."""
    counts = np.cumsum(votes[:, :, None] == np.arange(n_sites), axis=1)
    last_vote = (counts >= quorum).any(axis=2).argmax(axis=1)
    return np.asarray(np.take_along_axis(votes, last_vote[:, None], axis=1)[:, 0])


def _sites(quality: ArrayLike) -> Array:
    q = finite_array("quality", quality).astype(np.float64)
    if q.ndim != 1 or len(q) < 2 or np.sort(q)[-1] == np.sort(q)[-2]:
        raise ValueError(
            f"quality is {q.tolist()}; expected one number per site, two sites or more, and one "
            "of them better than all others."
        )
    return q


def nest_choice(
    rng: np.random.Generator,
    recruitment: float,
    preference: float = 0.0,
    n_scouts: int = 30,
    n_replicates: int = 2000,
    quality: ArrayLike = (1.0, 0.5),
    noise: float = 1.0,
    quorum: int = 10,
) -> NestChoice:
    """Colonies that choose a nest site: noisy scouts, recruitment, a quorum.

    Scouts arrive one by one. A scout explores by itself and assesses every site, quality plus
    its own normal noise; or it is led by an earlier scout, whose assessment it takes over. It
    commits to the site it holds best. That a led scout assesses nothing anew is the case in
    which recruitment harms most.

    Parameters
    ----------
    rng : Generator
    recruitment : float
        Probability, 0 to 1, that a scout after the first is led.
    preference : float
        How much sooner a better assessed site finds followers: a recruiter is followed in
        proportion to exp(preference * its highest assessment). At 0 all are alike.
    n_scouts, n_replicates : int
    quality : (n_sites,)
        One site must be the best.
    noise : float
        Standard deviation of an assessment, in units of quality.
    quorum : int
        Votes that decide; few enough that some site must get them.

    Returns
    -------
    NestChoice

    Raises
    ------
    ValueError
        If a number is out of range, or a colony could end without a quorum.

    References
    ----------
    Pratt et al. (2002) and Franks et al. (2002), Temnothorax; the model is much simplified.
    """
    q, led_share = _sites(quality), number_within("recruitment", recruitment, 0, 1)
    sizes = whole_number("n_replicates", n_replicates, 1), whole_number("n_scouts", n_scouts, 2)
    number_within("preference", preference, 0)
    most = (n_scouts - 1) // len(q) + 1
    if whole_number("quorum", quorum, 1) > most:
        raise ValueError(
            f"quorum is {quorum}; {n_scouts} scouts over {len(q)} sites are sure to give one of "
            f"them {most}, not more."
        )
    own = q + positive_number("noise", noise) * rng.standard_normal((*sizes, len(q)))
    source = _sources(rng, own.max(axis=2), rng.random(sizes) < led_share, preference)
    held = np.take_along_axis(own, source[:, :, None], axis=1)
    runner_up, best = np.argsort(q)[-2:]
    votes = held.argmax(axis=2)
    estimates = held[:, :, [best]] - held[:, :, [runner_up]]
    return NestChoice(estimates, votes, _first_quorum(votes, len(q), quorum), int(best))


def copying_correlation(recruitment: float, n_scouts: int) -> float:
    """Mean correlation of two scouts of `nest_choice` where no recruiter is preferred.

    Two scouts agree if they hold one assessment and are independent otherwise. The sum S_n of
    the squared numbers of holders has mean S_{n+1} = S_n (1 + 2 r / n) + 1 from S_1 = 1, and
    rho = (S_H - H) / (H (H - 1)). Since S_n grows as n^{2r} for r > 1/2, the variance V S_H / H^2
    of the mean falls more slowly than 1/H, and rho falls with H: it is no constant of the field.

    Raises
    ------
    ValueError
        If recruitment is not from 0 to 1, or there are fewer than two scouts.

    References
    ----------
    Chapter 6 of this book.
    """
    r, squares = number_within("recruitment", recruitment, 0, 1), 1.0
    for n in range(1, whole_number("n_scouts", n_scouts, 2)):
        squares = squares * (1 + 2 * r / n) + 1
    return (squares - n_scouts) / (n_scouts * (n_scouts - 1))


def averaging_error(difference: float, variance: float) -> float:
    """Probability that a normal mean agent of this variance puts the worse of two sites first.

    `difference` is the true one, in favour of the better site. The line gives the variance of
    a mean, not its shape: under recruitment the mean scout is a mixture of normals and errs a
    little less than this. A ValueError unless both are positive.
    """
    d, v = positive_number("difference", difference), positive_number("variance", variance)
    return float(norm.sf(d / np.sqrt(v)))


# --- Ants that share a task ------------------------------------------------------------------


def response(stimulus: ArrayLike, threshold: ArrayLike) -> Array:
    """Probability s^2 / (s^2 + theta^2) that an ant of threshold theta works at stimulus s.

    A ValueError unless both are finite, s is not negative and theta positive.

    References
    ----------
    Bonabeau, Theraulaz and Deneubourg (1996).
    """
    s, theta = finite_array("stimulus", stimulus), finite_array("threshold", threshold)
    if s.min() < 0 or theta.min() <= 0:
        raise ValueError(
            f"stimulus runs down to {s.min():g} and threshold to {theta.min():g}; stimuli must "
            "be at least 0 and thresholds positive."
        )
    return np.asarray(1 / (1 + np.square(theta / np.where(s > 0, s, 1)))) * (s > 0)


def task_replicates(
    rng: np.random.Generator,
    feedback: float,
    stimulus_noise: float = 0.0,
    threshold_spread: float = 0.0,
    n_ants: int = 30,
    n_steps: int = 50,
    n_replicates: int = 1000,
) -> Array:
    """Share of a window that each ant works, where ants with fixed thresholds share a stimulus.

    In every step each ant works with probability `response`. The stimulus then moves by
    feedback * (demand - share of ants at work), not below zero; it starts at 1, and the demand
    is the share that works there. Without feedback the stimulus stays, and ants are independent
    unless it is noisy. With feedback the work of some is work that others need not do.

    Parameters
    ----------
    rng : Generator
    feedback : float
        Stimulus that one colony's full work removes in a step, >= 0. Near 4 and above,
        identical ants overshoot.
    stimulus_noise : float
        Standard deviation of normal noise in the stimulus of a step, common to all ants.
    threshold_spread : float
        Standard deviation of the logarithm of the thresholds, which are the quantiles of a
        lognormal around 1; at 0 ants are identical.
    n_ants, n_steps, n_replicates : int
        The window of `n_steps` follows as many steps that do not count.

    Returns
    -------
    (n_replicates, n_ants, 1) array

    Raises
    ------
    ValueError
        If a number is out of range.

    References
    ----------
    Bonabeau, Theraulaz and Deneubourg (1996), fixed thresholds.
    """
    gain, sd = (
        number_within("feedback", feedback, 0),
        number_within("stimulus_noise", stimulus_noise, 0),
    )
    spread = number_within("threshold_spread", threshold_spread, 0)
    shape = whole_number("n_replicates", n_replicates, 1), whole_number("n_ants", n_ants, 2)
    window = whole_number("n_steps", n_steps, 1)
    with np.errstate(over="ignore"):  # `response` refuses what overflows
        threshold = np.exp(spread * norm.ppf((np.arange(n_ants) + 0.5) / n_ants))
    demand = response(1.0, threshold).mean()
    stimulus, work = np.ones((n_replicates, 1)), np.zeros(shape)
    for step in range(2 * window):
        felt = np.maximum(stimulus + sd * rng.standard_normal(stimulus.shape), 0)
        active = rng.random(shape) < response(felt, threshold)
        stimulus = np.maximum(stimulus + gain * (demand - active.mean(axis=1, keepdims=True)), 0)
        work += active if step >= window else 0
    return work[:, :, None] / window
