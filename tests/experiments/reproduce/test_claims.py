"""The paper's claims, put to its own numbers: what the spec says of each, and that the checks can fail."""

import math

import pytest

from dape.experiments.reproduce.catalogue import EXPERIMENTS, find
from dape.experiments.reproduce.claims import CLAIMS, VARIANT_TASKS, claims_of
from dape.experiments.reproduce.evidence import Evidence, Panel, Side
from dape.experiments.reproduce.judge import che_scores, count_kinds, judge, judge_all, published
from dape.experiments.reproduce.verdicts import Below, CountAbove, Faster, Heads, RatioFalls, sign_test
from dape.results.paper import TITLES, load
from dape.results.records import Row

ABC = ("a", "b", "c")


def row(method: str, ratio: int, value: float, *, seed: int = 0, size: str = "125m", train: int = 512, **more) -> Row:
    """As a small run gives it: trained at a quarter of the paper's length."""
    variant = more.pop("variant", "")
    return Row(
        run=f"{method}-{variant}-{size}-{train}-{seed}",
        method=method,
        variant=variant,
        seed=seed,
        train_length=train // 4,
        length=ratio * train // 4,
        metric="perplexity",
        value=value,
        scored_tokens=100,
        protocol="last_k",
        data_hash="d",
        extra={"model": size, "paper_train_length": train},
        **more,
    )


def rows_of(methods: dict[str, list[float]], *, seeds: int = 3, noise: float = 0.001, **more) -> list[Row]:
    """By method the perplexities at 1, 2, 4, ... training lengths; seeds differ a little, and in their differences."""
    return [
        row(method, 1 << place, value * (1 + noise * seed * (1 + index / 3)), seed=seed, **more)
        for index, (method, values) in enumerate(methods.items())
        for place, value in enumerate(values)
        for seed in range(seeds)
    ]


def below(low: str, high: str, **where) -> Below:
    return Below(pairs=((Side(low), Side(high)),), **where)


# On the paper's own numbers ------------------------------------------------------------------------------------------


def verdict_of_the_paper(id: str) -> str:
    claim = CLAIMS[id]
    experiment = find(claim.experiment)
    return judge(claim, experiment, [p.as_row() for p in published(experiment)], []).verdict


@pytest.mark.parametrize("base", ["alibi", "kerple", "fire"])
def test_dape_is_significantly_below_its_base_in_table_3(base):
    assert verdict_of_the_paper(f"seeds/dape-{base}") == "holds (significant)"


@pytest.mark.parametrize("other", ["rope", "t5"])
def test_against_rope_and_t5_the_paper_is_not_significant(other):
    """The spec computes p = 0.072 for dape-alibi against rope at 512 and 0.22 against t5."""
    assert verdict_of_the_paper(f"seeds/{other}") == "holds (not significant)"


def test_the_p_values_are_those_of_the_spec():
    evidence = Evidence([p.as_row() for p in load("A3")], size="125m")
    at_512 = evidence.compare(Panel("125m", 512), Side("dape-alibi"), Side("rope"), 1)
    assert at_512 is not None and at_512.found.p == pytest.approx(0.072, abs=0.001)
    expected = {"alibi": (0.017, 0.010, 0.002, 0.008, 0.021), "fire": (0.008, 0.006, 0.010, 0.021, 0.022)}
    for base, values in expected.items():
        for place, p in enumerate(values):
            cell = evidence.compare(Panel("125m", 512), Side(f"dape-{base}"), Side(base), 1 << place)
            # The spec tests perplexities, we their logarithms: the same for small deviations.
            assert cell is not None and cell.found.p is not None
            assert cell.found.p < 0.05 and (place > 1 or cell.found.p == pytest.approx(p, abs=0.002))


@pytest.mark.parametrize("id", [c.id for c in CLAIMS.values() if c.experiment in ("che", "time-cost", "2.7b", "6.7b")])
def test_every_claim_about_a_table_holds_in_it(id):
    assert verdict_of_the_paper(id).startswith("holds")


@pytest.mark.parametrize("id", [c.id for c in CLAIMS.values() if c.experiment in ("data-adaptive", "bias-ablation")])
def test_single_runs_allow_no_test(id):
    assert verdict_of_the_paper(id) == "holds (not significant)"


def test_what_only_a_picture_shows_is_not_tested():
    claim = CLAIMS["hidden-width/16"]
    found = judge(claim, find("hidden-width"), [p.as_row() for p in load("P6")], [])
    assert found.verdict == "not tested" and "prints no numbers" in found.detail
    assert verdict_of_the_paper("bias-maps/local") == "not tested"


def test_the_paper_is_wrong_where_its_numbers_are_changed():
    """What makes the checks above worth something."""
    experiment = find("bias-ablation")
    rows = [p.as_row() for p in load("A5")]
    worse = [r if (r.variant, r.length) != ("bias_only", 4096) else Row(**{**r.as_dict(), "value": 30.0}) for r in rows]
    verdicts = [judge(claim, experiment, worse, []).verdict for claim in claims_of(experiment)]
    assert verdicts == ["holds (not significant)", "fails"]


def test_every_experiment_that_trains_has_claims_and_every_claim_an_experiment():
    assert {claim.experiment for claim in CLAIMS.values()} == set(EXPERIMENTS)
    assert len(VARIANT_TASKS) == 11


def test_numbers_of_the_paper_as_rows():
    for name in TITLES:
        rows = [p.as_row() for p in load(name)]
        assert len(rows) == len(load(name)) and all(math.isfinite(r.value) for r in rows)
        assert all(Row.from_json(r.as_json()) == r for r in rows)
    (printed,) = [p for p in load("A3") if (p.method, p.eval_len) == ("rope", 1024)]
    made = printed.as_row()
    assert (made.value, made.extra["std"], made.extra["n_seeds"], made.train_length) == (45.1974, 12.2241, 3, 512)
    assert load("A2")[0].as_row().value == pytest.approx(0.5004)
    assert [p.id for p in load("p4")] == ["P4"] * 7


# On rows of ours -----------------------------------------------------------------------------------------------------


def test_lower_everywhere_with_seeds_that_agree():
    rows = rows_of({"a": [9, 8, 7], "b": [10, 10, 10]})
    found = below("a", "b").judge(Evidence(rows, size="125m"))
    assert found.verdict == "holds (significant)"
    assert "lower at 3 of 3 lengths, by 10" in found.detail and "paired t, n = 3, Holm-corrected p" in found.detail
    assert "95% interval" in found.detail


def test_higher_at_one_length_fails_and_says_where():
    rows = rows_of({"a": [9, 8, 11], "b": [10, 10, 10]})
    found = below("a", "b").judge(Evidence(rows, size="125m"))
    assert found.verdict == "fails" and "lower at 2 of 3 lengths" in found.detail and "not at 4x (10" in found.detail
    assert below("a", "b", last=2).judge(Evidence(rows, size="125m")).verdict == "holds (significant)"
    assert below("a", "b", longest=True).judge(Evidence(rows, size="125m")).verdict == "fails"
    assert below("a", "b", first=4).judge(Evidence(rows, size="125m")).verdict == "fails"


def test_seeds_that_disagree_are_not_significant():
    values = {"a": [9.0, 9.9, 9.5], "b": [9.1, 9.95, 10.5]}
    rows = [row(method, 1, value, seed=seed) for method, of in values.items() for seed, value in enumerate(of)]
    assert below("a", "b").judge(Evidence(rows, size="125m")).verdict == "holds (not significant)"


def test_one_seed_says_that_no_test_is_possible():
    windows = {"a": (2.0, 2.1, 2.2), "b": (2.3, 2.45, 2.5)}
    rows = [row(name, 1, math.exp(sum(w) / 3), window_nll=w) for name, w in windows.items()]
    found = below("a", "b").judge(Evidence(rows, size="125m"))
    assert found.verdict == "holds (not significant)" and "no test possible" in found.detail
    assert "windows of the one seed agree at 1 of 1" in found.detail


def test_nan_is_not_averaged_away():
    rows = [*rows_of({"b": [10]}), *(row("a", 1, math.nan if seed else 9.0, seed=seed) for seed in range(3))]
    found = below("a", "b").judge(Evidence(rows, size="125m"))
    assert found.verdict == "fails" and "not a number" in found.detail


def test_nothing_measured():
    found = below("a", "b").judge(Evidence(rows_of({"a": [9]}), size="125m"))
    assert found.verdict == "not tested" and "not measured: a against b" in found.detail
    assert below("a", "b").judge(Evidence([], size="125m")).verdict == "not tested"


def test_every_panel_counts():
    rows = rows_of({"a": [9, 8], "b": [10, 10]}) + rows_of({"a": [11, 8], "b": [10, 10]}, train=128)
    found = below("a", "b").judge(Evidence(rows, size="125m"))
    assert found.verdict == "fails" and "trained at 128 in the paper" in found.detail


def test_a_larger_model_against_a_smaller_one():
    rows = rows_of({"a": [9, 8]}, size="125m") + rows_of({"a": [8, 7]}, size="350m", noise=0.002)
    check = Below(pairs=((Side("a", "350m"), Side("a", "125m")),), sizes=("125m",), longest=True)
    found = check.judge(Evidence(rows, size="125m"))
    assert found.verdict == "holds (significant)" and "a 350m against a 125m: lower at 1 of 1" in found.detail
    turned = Below(pairs=((Side("a", "125m"), Side("a", "350m")),), sizes=("125m",))
    assert turned.judge(Evidence(rows, size="125m")).verdict == "fails"


def test_variants_are_told_apart():
    rows = [row("dape-kerple", 1, v, variant=name) for name, v in (("concat", 9.0), ("bias_only", 10.0))]
    evidence, names = Evidence(rows, size="125m"), ("dape-kerple (concat)", "dape-kerple (bias_only)")
    assert below(*names).judge(evidence).verdict.startswith("holds")
    assert below(*reversed(names)).judge(evidence).verdict == "fails"


def test_holm_is_over_the_whole_claim():
    """Nine comparisons with the same p: what is significant alone is not among nine."""
    values = {"a": [10.0, 10.1, 10.2], "b": [10.4, 10.6, 10.5]}
    alone = [row(m, 1, v, seed=s) for m, of in values.items() for s, v in enumerate(of)]
    assert below("a", "b").judge(Evidence(alone, size="125m")).verdict == "holds (significant)"
    many = [row(m, 1 << n, v, seed=s) for n in range(9) for m, of in values.items() for s, v in enumerate(of)]
    assert below("a", "b").judge(Evidence(many, size="125m")).verdict == "holds (not significant)"


# Counts, times, heads ------------------------------------------------------------------------------------------------


def test_counts_of_tasks():
    scores = {(task, name): 0.9 - 0.1 * (name == "base") for task in ABC for name in ("method", "base")}
    check = CountAbove(method="method", base="base", tasks=ABC, at_least=3)
    assert check.judge(scores).verdict == "holds (not significant)"  # three tasks cannot be significant
    assert check.judge({**scores, ("b", "method"): 0.1}).verdict == "fails"
    assert "not on b" in check.judge({**scores, ("b", "method"): 0.1}).detail
    del scores["a", "base"]
    found = check.judge(scores)
    assert found.verdict == "not tested" and "2 of 3 tasks measured (method above base on 2 of these)" in found.detail


def test_the_sign_test():
    assert sign_test(11, 11) == pytest.approx(2 / 2**11) == sign_test(0, 11)
    assert sign_test(10, 11) == pytest.approx(24 / 2**11)
    assert sign_test(5, 10) == 1.0


def test_scores_are_of_lengths_beyond_training_at_the_best_rate():
    def tested(lr: float, length: int, value: float, metric: str = "accuracy", **extra: str) -> Row:
        about = {"task": "even_pairs", "lr": lr, **extra}
        made = {**row("m", 1, value).as_dict(), "run": f"r{lr}", "train_length": 40, "length": length}
        return Row(**{**made, "metric": metric, "extra": about})

    rows = [tested(1e-3, 40, 0.9), tested(1e-3, 41, 0.6), tested(1e-3, 500, 0.8), tested(1e-4, 40, 0.5)]
    rows += [tested(1e-4, 41, 1.0), tested(1e-4, 500, 1.0)]
    assert che_scores(rows) == {("even_pairs", "m"): pytest.approx(0.7)}
    losses = [tested(1e-3, 40, 0.5, "nll"), tested(1e-4, 40, 0.3, "nll")]
    tied = [*rows[:3], tested(1e-4, 40, 0.9), *rows[4:], *losses]
    assert che_scores(tied) == {("even_pairs", "m"): 1.0}, "equally right: the smaller loss"
    same = [tested(1e-3, n, value, compat="deepmind") for n, value in ((40, 0.9), (41, 0.6), (500, 0.8))]
    assert che_scores(same) == {("even_pairs", "m"): 0.8}, "DeepMind's program leaves out length 41"


def test_times():
    times = {(size, name): 1.0 for size in ABC for name in ("m", "b")} | {("a", "m"): 1.3, ("b", "m"): 1.2}
    falls, faster = (kind(method="m", base="b", sizes=ABC) for kind in (RatioFalls, Faster))
    assert falls.judge(times).verdict.startswith("holds") and faster.judge(times).verdict == "fails"
    assert falls.judge({**times, ("c", "m"): 1.25}).verdict == "fails"
    assert faster.judge({key: value * (0.5 if key[1] == "m" else 1) for key, value in times.items()}).verdict != "fails"
    assert falls.judge({}).verdict == "not tested"


def test_heads():
    heads = [{"kind": "local", "input_dependence": 0.3}, {"kind": "flat", "input_dependence": 0.0}]
    counts = count_kinds(heads)
    assert counts == {"local": 1, "depending on the input": 1, "flat": 1, "depending on position alone": 1}
    assert Heads(kinds=("local",), others=("flat",), said="heads").judge(counts).verdict.startswith("holds")
    assert Heads(kinds=("local", "anti-local"), others=(), said="heads").judge(counts).verdict == "fails"


def test_all_claims_of_an_experiment():
    experiment = find("seeds")
    values = {arm.method: [10.0, 10.0] for arm in experiment.arms} | {"dape-alibi": [9.0, 9.0]}
    judged = {each.claim.id: each for each in judge_all(experiment, rows_of(values))}
    assert judged["seeds/dape-alibi"].ours.verdict == "holds (significant)"
    assert judged["seeds/dape-kerple"].ours.verdict == "fails"
    plain = judged["seeds/dape-alibi"].as_plain()
    assert set(plain) == {"id", "statement", "source", "paper", "ours"} and set(plain["ours"]) == {"verdict", "detail"}
