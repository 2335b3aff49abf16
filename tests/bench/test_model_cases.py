"""Models of ``dape bench model`` on shared weights, which change nothing."""

import pytest
import torch

from dape.bench.model_cases import make_trainees, make_trunk
from dape.bench.train_cases import Workload
from dape.models.config import DecoderConfig
from dape.models.decoder import DecoderLM

WORKLOAD = Workload(
    layers=2, width=24, heads=4, vocabulary=19, batch=2, precision="float32", compile=False, device="cpu", seed=0
)


@pytest.fixture
def trainees():
    return make_trainees(make_trunk(WORKLOAD, 9), ("rope", "kerple", "t5", "dape-fire"), (1, 2), WORKLOAD, 9)


def test_models_on_shared_weights_are_decoders_of_their_own(trainees):
    for (encoding, depth), trainee in trainees.items():
        config = DecoderConfig(layers=depth, width=24, heads=4, vocabulary=19, encoding=encoding, train_length=9)
        alone = DecoderLM(config)
        alone.load_state_dict(trainee.model.state_dict())  # strict: the same parts, of the same shapes
        torch.testing.assert_close(alone(trainee.inputs), trainee.model(trainee.inputs))
        assert trainee.model.config == config


def test_weights_are_shared_and_encodings_are_not(trainees):
    views = [trainee.model for trainee in trainees.values()]
    assert len({id(view.embedding.weight) for view in views}) == len({id(view.blocks[0]) for view in views}) == 1
    shallow, deep = trainees["kerple", 1].model, trainees["kerple", 2].model
    assert shallow.encodings[0].r1 is not deep.encodings[0].r1
    (optimizer,) = {id(t.optimizer): t.optimizer for t in trainees.values()}.values()
    held = [p for group in optimizer.param_groups for p in group["params"]]
    assert len(held) == len({id(p) for p in held}) and {id(p) for v in views for p in v.parameters()} == set(
        map(id, held)
    )


def test_a_step_of_one_model_leaves_the_parameters_of_the_others_alone(trainees):
    before = {case: [p.detach().clone() for p in t.model.encodings.parameters()] for case, t in trainees.items()}
    second = [p.detach().clone() for p in trainees["kerple", 2].model.blocks[1].parameters()]
    trainees["kerple", 1].step()
    for case, trainee in trainees.items():
        changed = any(
            not torch.equal(a, b) for a, b in zip(before[case], trainee.model.encodings.parameters(), strict=True)
        )
        assert changed == (case == ("kerple", 1))
    after = trainees["kerple", 2].model.blocks[1].parameters()
    assert all(torch.equal(a, b) for a, b in zip(second, after, strict=True))
    assert not any(p.grad is not None for t in trainees.values() for p in t.parameters)


def test_models_repeat_and_leave_the_random_state_alone():
    made = []
    for state in (17, 18):  # what the global state was must not matter
        torch.manual_seed(state)
        before = torch.get_rng_state()
        made += make_trainees(make_trunk(WORKLOAD, 9), ("kerple",), (1,), WORKLOAD, 9).values()
        assert torch.equal(torch.get_rng_state(), before)
    first, second = made
    assert all(torch.equal(a, b) for a, b in zip(first.parameters, second.parameters, strict=True))


def test_depths_of_one_encoding_are_neighbours(trainees):
    assert list(trainees)[:4] == [("rope", 1), ("rope", 2), ("kerple", 1), ("kerple", 2)]
