"""The paper's claims, as records that can be checked against its numbers and ours. No torch here."""

from collections.abc import Iterable
from dataclasses import dataclass

from dape.experiments.reproduce.catalogue import DAPE_OF_THE_PAPER, EXPERIMENTS, PaperExperiment
from dape.experiments.reproduce.evidence import Side
from dape.experiments.reproduce.verdicts import Below, BestOn, Check, CountAbove, Faster, Heads, RatioFalls
from dape.tasks.chomsky.catalogue import PAPER_TASKS


@dataclass(frozen=True, kw_only=True)
class Claim:
    id: str
    """The experiment and a name, ``seeds/rope``."""
    statement: str
    source: str
    """Where the paper says it."""
    check: Check

    @property
    def experiment(self) -> str:
        return self.id.partition("/")[0]


BASES = ("alibi", "kerple", "fire")
PERMUTATION_INVARIANT = ("parity_check", "cycle_navigation", "bucket_sort")
VARIANT_TASKS = tuple(name for name in PAPER_TASKS if name not in PERMUTATION_INVARIANT)
RANDOMIZED_OF_THE_PAPER = tuple(
    f"randomized-{name}" for name in ("learned", "sinusoidal", "rope", "transformer-xl", *BASES)
)


def below(*pairs: tuple[str, str], **where: object) -> Below:
    """The check with pairs of sides, each written as method or method@size."""
    return Below(pairs=tuple((_side(low), _side(high)) for low, high in pairs), **where)  # pyright: ignore[reportArgumentType]


def _side(text: str) -> Side:
    label, _, size = text.partition("@")
    return Side(label, size)


def _each_base(experiment: str, source: str, extra: str = "") -> list[Claim]:
    return [
        Claim(
            id=f"{experiment}/dape-{base}",
            statement=f"dape-{base} has a lower perplexity than {base} at every length{extra}",
            source=source,
            check=below((f"dape-{base}", base)),
        )
        for base in BASES
    ]


def _language() -> Iterable[Claim]:
    yield from _each_base("seeds", "Table 3, p < 0.05", ", significantly")
    for other in ("rope", "t5"):
        yield Claim(
            id=f"seeds/{other}",
            statement=f"every DAPE encoding has a lower perplexity than {other} at every length",
            source="text beside Table 3",
            check=below(*((name, other) for name in DAPE_OF_THE_PAPER)),
        )
    yield from _each_base("baselines", "Figure 2; numbers for kerple at 8192 only")
    yield from _each_base("train-1024", "Figure 3")
    yield Claim(
        id="train-1024/alibi",
        statement="dape-fire has a lower perplexity than alibi at 8 training lengths",
        source="text beside Figure 3",
        check=below(("dape-fire", "alibi"), longest=True),
    )
    yield from _each_base("model-size", "Figure 4")
    yield from _sizes()
    yield from _ablations()
    for size in ("2.7b", "6.7b"):
        yield Claim(
            id=f"{size}/lowest",
            statement="dape-kerple has the lowest perplexity at every length",
            source=EXPERIMENTS[size].where,
            check=below(*(("dape-kerple", other) for other in ("rope", "t5", "alibi", "kerple"))),
        )


def _sizes() -> Iterable[Claim]:
    for method in ("alibi", "dape-alibi"):
        yield Claim(
            id=f"model-size/{method}-350m",
            statement=f"{method} has a lower perplexity with 350M than with 125M parameters at the greatest length",
            source="text beside Figure 4",
            check=below((f"{method}@350m", f"{method}@125m"), longest=True, sizes=("125m",)),
        )
    yield Claim(
        id="model-size/dape-fire-125m",
        statement="with 125M parameters alibi has a lower perplexity than dape-fire at the greatest length",
        source="text beside Figure 4",
        check=below(("alibi", "dape-fire"), longest=True, sizes=("125m",)),
    )
    yield Claim(
        id="model-size/dape-fire-350m",
        statement="with 350M parameters dape-fire has a lower perplexity than alibi below 8 training lengths",
        source="text beside Figure 4",
        check=below(("dape-fire", "alibi"), last=7, sizes=("350m",)),
    )


def _ablations() -> Iterable[Claim]:
    forms = ("add_residual", "concat", "concat_residual")
    yield Claim(
        id="variants/kerple",
        statement="all forms of DAPE have a lower perplexity than kerple at every length",
        source="Figure 5",
        check=below(*((f"dape-kerple ({form})", "kerple") for form in forms)),
    )
    yield Claim(
        id="variants/concat",
        statement="both forms that concatenate have a lower perplexity than add_residual at the greatest length",
        source="text beside Figure 5",
        check=below(*((f"dape-kerple ({form})", "dape-kerple (add_residual)") for form in forms[1:]), longest=True),
    )
    for width in (4, 16, 32, 64):
        yield Claim(
            id=f"hidden-width/{width}",
            statement=f"dape-alibi with {width} hidden units has a lower perplexity than alibi at every length",
            source="Figure 6; numbers for 4 units only",
            check=below((f"dape-alibi (hidden={width})", "alibi")),
        )
    for other in ("transformer-xl", "cope"):
        yield Claim(
            id=f"data-adaptive/{other}",
            statement=f"dape-kerple has a lower perplexity than {other} from 2 training lengths on",
            source="Table 4",
            check=below(("dape-kerple", other), first=2),
        )
    full, static = "dape-kerple (concat_residual)", "dape-kerple (bias_only)"
    for low, high, words in ((full, static, "f(QK, B) below f(B)"), (static, "kerple", "f(B) below the static bias")):
        yield Claim(
            id=f"bias-ablation/{'scores' if low == full else 'bias'}",
            statement=f"{words} in perplexity from 2 training lengths on",
            source="Table 5",
            check=below((low, high), first=2),
        )


def _che() -> Iterable[Claim]:
    yield Claim(
        id="che/best",
        statement="a DAPE encoding is best on at least 10 of the 11 tasks that are not permutation-invariant",
        source="Table 2",
        check=BestOn(methods=DAPE_OF_THE_PAPER, against=RANDOMIZED_OF_THE_PAPER, tasks=VARIANT_TASKS, at_least=10),
    )
    for base, needed in zip(BASES, (11, 10, 11), strict=True):
        yield Claim(
            id=f"che/dape-{base}",
            statement=f"dape-{base} is better than randomized-{base} on at least {needed} of these 11 tasks",
            source="Table 2",
            check=CountAbove(method=f"dape-{base}", base=f"randomized-{base}", tasks=VARIANT_TASKS, at_least=needed),
        )
    for method, base, needed in (("fire", "kerple", 9), ("kerple", "alibi", 11)):
        yield Claim(
            id=f"che/{method}-{base}",
            statement=f"randomized-{method} is better than randomized-{base} on at least {needed} of 14 tasks",
            source="Table 2",
            check=CountAbove(
                method=f"randomized-{method}", base=f"randomized-{base}", tasks=PAPER_TASKS, at_least=needed
            ),
        )


def _others() -> Iterable[Claim]:
    sizes = ("350m", "2.7b", "6.7b")
    yield Claim(
        id="time-cost/falls",
        statement="the time of dape-kerple relative to kerple falls with the size of the model",
        source="Table 1",
        check=RatioFalls(method="dape-kerple", base="kerple", sizes=sizes),
    )
    yield Claim(
        id="time-cost/fire",
        statement="an iteration of dape-kerple takes less time than one of fire at every size",
        source="Table 1",
        check=Faster(method="dape-kerple", base="fire", sizes=sizes),
    )
    yield Claim(
        id="bias-maps/local",
        statement="some heads of f favour near tokens, others far ones",
        source="Figures 1 and B.1 to B.15",
        check=Heads(
            kinds=("local", "anti-local"),
            others=("flat",),
            said="heads by the slope of f against the logarithm of the lag",
        ),
    )
    yield Claim(
        id="bias-maps/input",
        statement="f depends on the input, not on position alone",
        source="Figures 1 and B.1 to B.15",
        check=Heads(
            kinds=("depending on the input",),
            others=("depending on position alone",),
            said="heads by the variance of f at fixed lag across samples",
        ),
    )


CLAIMS: dict[str, Claim] = {claim.id: claim for claim in (*_language(), *_che(), *_others())}


def claims_of(experiment: PaperExperiment) -> list[Claim]:
    return [claim for claim in CLAIMS.values() if claim.experiment == experiment.id]
