"""The cases of ``benchmarks/cases`` as micro-benchmarks: CPU seconds beside those of something else."""

import importlib
import itertools
import pkgutil
from functools import cache

import cases
import pytest
from cases.case import Case, cpu_s
from ratios import beside


def listed():
    """Yield a parameter set for each method ``time_...`` or ``long_...`` of the cases that state ``against``."""
    for info in pkgutil.iter_modules(cases.__path__, "cases."):
        module = importlib.import_module(info.name)
        for kind in vars(module).values():
            if not (isinstance(kind, type) and issubclass(kind, Case) and kind.against) or kind.__module__ != info.name:
                continue
            for method in (name for name in dir(kind) if name.startswith(("time_", "long_"))):
                for parameters in itertools.product(*getattr(kind, "params", ())):
                    name = f"{kind.__name__}.{method}({', '.join(map(str, parameters))})"
                    yield pytest.param(kind, method, parameters, id=name)


@cache
def shared(kind):
    """Return what a case makes once and gives to all its methods first; none where it makes nothing."""
    return (kind().setup_cache(),) if hasattr(kind, "setup_cache") else ()


@pytest.mark.benchmark(timer=cpu_s)
@pytest.mark.parametrize(("kind", "method", "parameters"), list(listed()))
def test_case(benchmark, kind, method, parameters):
    case, arguments = kind(), (*shared(kind), *parameters)
    case.setup(*arguments)
    warm = 1 if case.repeats > 2 else 0
    outcome = benchmark.pedantic(
        getattr(case, method), arguments, rounds=case.repeats, iterations=1, warmup_rounds=warm
    )
    case.check(outcome)
    assert beside(benchmark, case.against, case.reference) <= case.most
