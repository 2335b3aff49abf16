"""The transformers library's own tests of models, on DapeModel and DapeForCausalLM: how many pass.

    python tests/hf/suites.py CHECKOUT [ENCODING ...] [-k WORD]

CHECKOUT is a clone of the library's repository at the tag of the installed version: the installed package has no tests,
and those of another version do not import. They need the packages parameterized and httpx. Minutes for each encoding.
docs/hugging-face.md has the counts, and the reasons of what fails or is skipped. Two things are ours: texts are padded
on the left, since `generate` refuses others, and shapes are those of DapeConfig.
"""

import argparse
import os
import sys
import types
import unittest
from collections import Counter
from pathlib import Path

ENCODINGS = ("dape-kerple", "alibi", "rope", "fire")
SUITES = ("ModelTesterMixin", "GenerationTesterMixin", "CausalLMModelTest")
"""The classes whose tests are run. Those of exporters are not, which know models by a list of their own."""
LEFT_OUT = {
    "test_pipeline_mixin": "PipelineTesterMixin",
    "test_training_mixin": "TrainingTesterMixin",
    "test_tensor_parallel_mixin": "TensorParallelTesterMixin",
    "test_fsdp_mixin": "FSDPTesterMixin",
}
"""Modules that are not imported, and their classes: pipelines (a list of models again), training until a text is
learned by heart, and sharding."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkout", type=Path)
    parser.add_argument("encodings", nargs="*", default=ENCODINGS)
    parser.add_argument("-k", dest="word", default="", help="only tests whose name has this word")
    given = parser.parse_args()
    if not (given.checkout / "tests" / "causal_lm_tester.py").is_file():
        parser.error(f"{given.checkout} is no clone of the transformers repository: no tests/causal_lm_tester.py in it")
    os.environ["HF_HUB_OFFLINE"] = "1"  # before the library is imported, which reads it once
    sys.path.insert(0, str(given.checkout.resolve()))  # its tests import each other as `tests`
    return max(run(encoding, given.word) for encoding in given.encodings)


def run(encoding: str, word: str) -> int:
    """Run the suites on an encoding and print a table. Returns 1 if a test failed."""
    case = case_of(encoding)
    names = [name for name in unittest.TestLoader().getTestCaseNames(case) if suite_of(case, name) in SUITES]
    result = unittest.TestResult()
    unittest.TestSuite(case(name) for name in names if word in name).run(result)
    failed = {test.id().split()[0].split(".")[-1]: text for test, text in [*result.failures, *result.errors]}
    skipped = {test.id().split(".")[-1] for test, _ in result.skipped} - failed.keys()
    counts = Counter((suite_of(case, name), outcome(name, failed, skipped)) for name in names if word in name)
    print(f"{encoding:24} passed failed skipped")
    for suite in SUITES:
        print(f"{suite:24}" + "".join(f"{counts[suite, each]:7}" for each in ("passed", "failed", "skipped")))
    for name, text in failed.items():
        print(f"  {name}: {text.strip().splitlines()[-1][:200]}")
    return int(bool(failed))


def suite_of(case: type, name: str) -> str:
    """The class that defines a test. Its name is all there is to see: the library wraps tests in each subclass."""
    return getattr(case, name).__qualname__.split(".")[0]


def outcome(name: str, failed: dict[str, str], skipped: set[str]) -> str:
    return "failed" if name in failed else "skipped" if name in skipped else "passed"


def case_of(encoding: str) -> type:
    """The library's test case for our classes with this encoding."""
    for module, name in LEFT_OUT.items():
        sys.modules[f"tests.{module}"] = types.ModuleType(module)
        setattr(sys.modules[f"tests.{module}"], name, type(name, (), {}))
    import torch

    try:
        from tests.causal_lm_tester import CausalLMModelTest, CausalLMModelTester
    except ImportError as error:
        sys.exit(f"{error}\nThe clone must be of the installed version, with parameterized and httpx installed.")
    from dape.hf import DapeConfig, DapeForCausalLM, DapeModel

    class Tester(CausalLMModelTester):
        base_model_class, causal_lm_class, config_class = DapeModel, DapeForCausalLM, DapeConfig

        def get_config(self):
            shape = {"layers": self.num_hidden_layers, "width": self.hidden_size, "heads": self.num_attention_heads}
            ids = {name: getattr(self, name) for name in ("pad_token_id", "bos_token_id", "eos_token_id")}
            return DapeConfig(encoding=encoding, vocabulary=self.vocab_size, train_length=64, **shape, **ids)

        def prepare_config_and_inputs(self):
            config, tokens, types, mask, *labels = super().prepare_config_and_inputs()
            return config, tokens, types, torch.flip(mask, dims=[1]), *labels

    class Case(CausalLMModelTest, unittest.TestCase):
        model_tester_class = Tester
        has_attentions = False  # weights of attention are never whole in memory

    return Case


if __name__ == "__main__":
    sys.exit(main())
