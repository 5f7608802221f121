"""Losses, distances, queries and samplers from any tensors: a finite value of the right shape, or a sentence."""

import math

import hypothesis.strategies as st
import torch
from factories import REFUSED, fuzz, near, odd, odd_tensors, outcome, tensors

from dpswd import DPSlicedWassersteinLoss, FixedSizeSampler, ProjectionMechanism, random_projections, sliced_wasserstein
from dpswd.loss import Release, clip_rows
from dpswd.queries import ClassCounts, SecondMoment
from dpswd.sketch import release_sketch
from dpswd.sliced import wasserstein_1d

N, D, K = 8, 3, 6
MECHANISMS = [
    ProjectionMechanism(D, K, 0.5, N),
    ProjectionMechanism(D, K, 0.5, N, kind="orthogonal", statistic="quantiles", n_quantiles=4),
    ProjectionMechanism(D, K, 0.5, N, statistic="quantiles", n_quantiles=2, n_classes=2),
    ProjectionMechanism(D, K, 1e50, N, row_norm=1e50),
    ProjectionMechanism(D, K, 1e-50, N, row_norm=1e-50),
]
labels = st.one_of(
    st.none(),
    st.lists(st.integers(-1, 2), min_size=N - 1, max_size=N).map(lambda each: torch.tensor(each, dtype=torch.int64)),
    st.just(torch.zeros(N, dtype=torch.int64)),
    odd_tensors,
)


class Log:
    """Counts what is announced."""

    def __init__(self):
        self.made = 0

    def record(self, mechanism):
        self.made += 1


@fuzz(
    220,
    mechanism=st.sampled_from(MECHANISMS),
    private=near(tensors(likely=(N, D)), odds=0.05),
    public=near(tensors(likely=(5, D)), odds=0.05),
    classes=labels,
)
def test_loss(mechanism, private, public, classes):
    log = Log()
    loss = DPSlicedWassersteinLoss(mechanism, recorder=log)
    own = classes if mechanism.n_classes else None
    theirs = torch.zeros(len(public), dtype=torch.int64) if own is not None and getattr(public, "ndim", 0) else None
    value = outcome(loss, private, public, own, theirs)
    assert log.made == loss.n_releases == (value is not REFUSED)
    if value is REFUSED:
        return
    assert value.shape == ()
    if mechanism.sigma == 0.5 and bool((public.abs() < 1e15).all()):
        assert torch.isfinite(value)
    if public.requires_grad:
        value.backward()
        assert public.grad.shape == public.shape
    assert getattr(private, "grad", None) is None


@fuzz(80, mechanism=st.sampled_from(MECHANISMS), private=odd_tensors, classes=labels)
def test_nothing_is_released_where_something_is_refused(mechanism, private, classes):
    log = Log()
    loss = DPSlicedWassersteinLoss(mechanism, recorder=log)
    made = outcome(loss.release, private, classes)
    assert log.made == (made is not REFUSED)
    if made is not REFUSED:
        assert torch.isfinite(made.values).all()
        assert not made.values.requires_grad
        again = Release.from_state_dict(made.state_dict())
        assert torch.equal(again.values, made.values)


@fuzz(40, thing=odd)
def test_the_loss_wants_a_mechanism(thing):
    assert outcome(DPSlicedWassersteinLoss, thing) is REFUSED


@fuzz(60, rows=tensors(likely=(N, D)), norm=st.floats(1e-50, 1e50))
def test_clipped_rows(rows, norm):
    if rows.ndim == 2 and rows.is_floating_point() and torch.isfinite(rows).all() and rows.shape[1]:
        assert (torch.linalg.vector_norm(clip_rows(rows, norm), dim=1) <= norm).all()


@fuzz(
    160,
    x=odd_tensors,
    y=tensors(likely=(5, D)),
    u=tensors(shapes=((D, K), (K, D), (D, 0), (D,))),
    p=near(st.sampled_from([1, 2, 3, 1.5])),
    most=near(st.sampled_from([None, 1, 1000]), odds=0.1),
)
def test_sliced_wasserstein(x, y, u, p, most):
    value = outcome(sliced_wasserstein, x, y, u, p, max_bytes=most)
    if value is REFUSED:
        return
    assert value.shape == ()
    assert not value < 0
    if all(bool((each.detach().abs() < 1e3).all()) for each in (x, y, u)) and p <= 3:
        assert torch.isfinite(value)


@fuzz(60, x=tensors(shapes=((5, D), (4, D), (0, D), (D,)), likely=(5, D)), y=odd_tensors, p=near(st.just(2)))
def test_wasserstein_1d(x, y, p):
    value = outcome(wasserstein_1d, x, y, p)
    assert value is REFUSED or value.shape == (x.shape[1],)


@fuzz(
    60,
    dim=near(st.integers(0, 9)),
    k=near(st.integers(0, 20)),
    kind=near(st.sampled_from(["iid", "orthogonal"]), odds=0.1),
    generator=near(st.none(), odds=0.1),
    dtype=near(st.sampled_from([torch.float32, torch.float64]), odds=0.1),
)
def test_directions(dim, k, kind, generator, dtype):
    u = outcome(random_projections, dim, k, kind=kind, generator=generator, dtype=dtype)
    if u is not REFUSED:
        assert u.shape == (dim, k)
        assert u.dtype is dtype
        assert torch.allclose(torch.linalg.vector_norm(u.double(), dim=0), torch.ones(int(k), dtype=torch.float64))


@fuzz(
    80,
    size=near(st.integers(1, 40)),
    batch=near(st.integers(0, 40)),
    steps=near(st.integers(0, 9)),
    every=near(st.integers(0, 4)),
    start=near(st.integers(-1, 9)),
    seed=near(st.none()),
)
def test_sampler(size, batch, steps, every, start, seed):
    sampler = outcome(FixedSizeSampler, size, batch, n_steps=steps, every=every, start=start, noise_seed=seed)
    if sampler is REFUSED or sampler.n_steps > 100 or sampler.sample_size > 1000:
        return
    drawn = list(sampler)
    assert len(drawn) == len(sampler)
    for indices in drawn:
        assert len(indices) in (0, batch)
        assert len(set(indices.tolist())) == len(indices)
        assert all(0 <= index < size for index in indices.tolist())


@fuzz(100, rows=near(tensors(likely=(N, D)), odds=0.1), classes=labels)
def test_queries(rows, classes):
    logs = Log(), Log()
    counts, moment = ClassCounts(2, 1.0), SecondMoment(D, 0.5, 1.0)
    counts.recorder, moment.recorder = logs
    found = outcome(counts.release, classes), outcome(moment.release, rows)
    assert [log.made for log in logs] == [each is not REFUSED for each in found]
    for each, shape in zip(found, ((2,), (D, D)), strict=True):
        assert each is REFUSED or (each.shape == shape and torch.isfinite(each).all())


@fuzz(40, classes=odd, sigma=odd, share=odd, norm=odd, dim=odd)
def test_queries_from_odd_arguments(classes, sigma, share, norm, dim):
    for call in (
        lambda: ClassCounts(classes, 1.0, 0.1),
        lambda: ClassCounts(3, sigma, 0.1),
        lambda: ClassCounts(3, 1.0, share),
        lambda: SecondMoment(dim),
        lambda: SecondMoment(3, norm),
        lambda: SecondMoment(3, 0.5, sigma),
        lambda: SecondMoment(3, 0.5, 1.0, share),
    ):
        query = outcome(call)
        assert query is REFUSED or 0 < query.mechanism.unit_sensitivity < math.inf


@fuzz(
    60, parts=st.lists(near(tensors(likely=(4, D)), odds=0.1), max_size=3), mechanism=st.sampled_from(MECHANISMS[1:3])
)
def test_sketch(parts, mechanism):
    log = Log()
    loss = DPSlicedWassersteinLoss(mechanism, recorder=log)
    made = outcome(release_sketch, loss, lambda: parts, max_bytes=10**6)
    assert log.made == (made is not REFUSED)
    assert made is REFUSED or torch.isfinite(made.values).all()
