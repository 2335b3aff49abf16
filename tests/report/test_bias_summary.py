"""What is said about bias maps follows from the numbers per head."""

from dape.report.bias_summary import bias_summary, sentences


def head(layer: int, number: int, slope: float, kind: str, share: float | None, **other) -> dict:
    given = {"slopes": [slope, slope], "bias_kind": "local", "bias_input_dependence": None if share is None else 0.0}
    return {
        "layer": layer,
        "head": number,
        "slope": slope,
        "kind": kind,
        "input_dependence": share,
        **given,
        **other,
    }


def make(**other) -> dict:
    return {
        "method": "dape-kerple",
        "variant": "concat_residual",
        "terms": {"logits": "A + B + f([A; B])", "f": "f([A; B])", "bias": True},
        "train_length": 64,
        "step": 150,
        "length": 256,
        "layers": [1, 4],
        "heads": [1, 2],
        "model_layers": 4,
        "model_heads": 8,
        "samples": [{}, {}],
        "heads_summary": [
            head(1, 1, -1.0, "local", 0.125, slopes=[-3.0, 1.0]),
            head(1, 2, -0.5, "local", 0.5),
            head(4, 1, 0.25, "anti-local", 0.75),
            head(4, 2, 0.001, "flat", 1.0, slopes=[-0.001, 0.003], bias_kind="flat"),
        ],
        **other,
    }


def test_counts_in_words():
    what, kinds, divided, share, bias = sentences(make())
    assert "dape-kerple (concat_residual): logits = A + B + f([A; B]). Trained at 64 tokens for 150 steps" in what
    assert "2 windows of 256 tokens, layers 1 and 4 of 4, heads 1 and 2 of 8." in what
    assert kinds.startswith(
        "f([A; B]) is local (falls with the logarithm of the lag) in 2 of 4 heads, anti-local (rises)"
    )
    assert kinds.endswith("in 1, flat (changes by less than 0.1 from lag 1 to 255) in 1.")
    assert divided == "In 1 of those that are not flat the sign of the slope differs between windows."
    assert "median 62.5%, from 12.5% (layer 1, head 1) to 100.0% (layer 4, head 2)" in share
    assert bias == "The static bias B is local in 3, flat in 1 of 4 heads; its input dependence is 0.0%."


def test_a_table_by_layer():
    text = bias_summary(make())
    assert text.startswith("# Bias maps of dape-kerple\n\n- dape-kerple")
    assert "| 1 | 2 | 0 | 0 | -0.750 | 31.2% |\n| 4 | 0 | 1 | 1 | +0.126 | 87.5% |\n" in text


def test_a_static_bias():
    static = [head(1, 1, 0.0, "flat", 0.0)]
    facts = make(
        variant="", terms={"logits": "A + B", "f": "", "bias": True}, heads_summary=static, layers=[1], heads=[1]
    )
    what, no_f, bias = sentences(facts)
    assert "layer 1 of 4, head 1 of 8" in what
    assert no_f.startswith("There is no f") and "local in 1 of 1 head; its input dependence is 0.0%" in bias
    assert "| layer |" not in bias_summary(facts)
    assert sentences({**facts, "terms": {"logits": "A", "f": "", "bias": False}})[1:] == [
        "Neither a bias nor f enters the logits: there is nothing to judge but the scores."
    ]
    assert "all 4 layers, its only head." in sentences({**facts, "layers": [1, 2, 3, 4], "model_heads": 1})[0]


def test_f_of_positions_alone():
    same = [head(1, 1, -1.0, "local", 0.0)]
    assert "Input dependence: none. f([A; B]) is the same for every text." in sentences(make(heads_summary=same))


def test_one_window():
    alone = [head(1, 1, -1.0, "local", None)]
    found = sentences(make(samples=[{}], heads_summary=alone, layers=[1], heads=[1]))
    assert "the last query of 1 window of" in found[0]
    assert "Input dependence needs at least 2 windows." in found
    assert found[-1] == "The static bias B is local in 1 of 1 head."
    assert "| 1 | 1 | 0 | 0 | -1.000 | - |" in bias_summary(
        make(samples=[{}], heads_summary=alone, layers=[1], heads=[1])
    )
