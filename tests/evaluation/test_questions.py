"""Questions in text: read back as text, and compared with what the filler was."""

import numpy as np
import pytest

from dape.data.tokenizer import ByteTokenizer, Tokenizer, train_bpe
from dape.errors import UsageError
from dape.evaluation.questions import CONSONANTS, VOWELS, Sample

BYTES = ByteTokenizer()


def parts(sample: Sample) -> tuple[str, str]:
    """The text before the answer, and the answer."""
    return BYTES.decode(sample.tokens[: -sample.answer]), BYTES.decode(sample.tokens[-sample.answer :])


# Both tasks ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["passkey", "recall"])
@pytest.mark.parametrize("length", [64, 65, 100, 1001])
@pytest.mark.parametrize("depth", [0.0, 0.3, 1.0])
def test_exact_lengths(task_of, name, length, depth):
    for sample in task_of(name).samples(length, depth):
        assert len(sample.tokens) == len(sample.twin) == length + 1


@pytest.mark.parametrize("name", ["passkey", "recall"])
@pytest.mark.parametrize("depth", [0.0, 0.25, 0.5, 1.0])
def test_the_answer_is_stated_once_and_nowhere_else(task_of, name, depth):
    for index in range(20):
        sample = task_of(name).sample(300, depth, index)
        prompt, answer = parts(sample)
        question = prompt[prompt.rindex("\n") :]
        assert question.endswith(' "') and prompt.count(question) == 2, "the question itself, and the statement"
        assert prompt.count(question + answer + '"\n') == 1
        assert prompt.count(answer) == 1
        assert sample.twin.tolist()[-len(question) - 5 :] == sample.tokens.tolist()[-len(question) - 5 :]


@pytest.mark.parametrize("name", ["passkey", "recall"])
def test_the_twin_differs_in_what_is_stated(task_of, name):
    for index in range(20):
        sample = task_of(name).sample(300, 0.5, index)
        prompt, answer = parts(sample)
        twin = BYTES.decode(sample.twin)
        assert twin[: -len(answer)].count(answer) == 0 and twin.endswith(answer)
        different = np.flatnonzero(sample.tokens != sample.twin)
        stated = prompt.index(answer)
        assert stated <= different[0] and different[-1] < stated + len(answer)
        assert different[0] == stated, "the first token alone must tell them apart"


@pytest.mark.parametrize("name", ["passkey", "recall"])
def test_samples_are_a_function_of_seed_length_depth_and_index(task_of, name):
    one = task_of(name, lengths=(300, 700), samples=3).sample(300, 0.25, 2)
    task = task_of(name, lengths=(300,), samples=9, depths=(0.25,))
    np.random.seed(0)
    task.samples(300, 0.5)
    other = task.sample(300, 0.25, 2)
    assert np.array_equal(one.tokens, other.tokens) and np.array_equal(one.twin, other.twin)
    all_of_them = [*task.samples(300, 0.25), task.sample(300, 0.5, 0), task_of(name, seed=1).sample(300, 0.25, 2)]
    assert len({sample.tokens.tobytes() for sample in all_of_them}) == 11


@pytest.mark.parametrize("name", ["passkey", "recall"])
def test_lengths_and_depths_of_an_index_share_the_question_and_the_end_of_the_filler(task_of, name):
    short, long = (parts(task_of(name).sample(length, 0.0, 4)) for length in (120, 500))
    assert short[1] == long[1]
    if name == "passkey":  # other pairs stand further back in a longer text
        assert short[0][-60:] == long[0][-60:]
    assert parts(task_of(name).sample(500, 1.0, 4))[1] == long[1]


@pytest.mark.parametrize("name", ["passkey", "recall"])
def test_shortest_is_the_shortest(task_of, name):
    task = task_of(name)
    shortest = task.shortest()
    samples = task.samples(shortest, 0.5)
    assert all(len(sample.tokens) == shortest + 1 for sample in samples)
    with pytest.raises(UsageError, match=f"at least {shortest} tokens"):
        task.samples(shortest - 1, 0.5)


# One by one ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("depth", [0.0, 0.1, 0.5, 0.77, 1.0])
def test_passkey_literally(task_of, held_out, depth):
    """Taken apart again: the filler is a piece of the ring of held-out text, cut at the depth."""
    ring = [*BYTES.encode(held_out).tolist(), BYTES.eod] * 2
    for index in range(5):
        tokens = task_of().sample(400, depth, index).tokens.tolist()
        key = bytes(tokens[-5:]).decode()
        assert key.isdigit()
        question = list(b'\nThe pass key is "')
        statement = [*question, *key.encode(), *b'"\n']
        assert tokens[-5 - len(question) : -5] == question
        before = round(depth * (401 - len(statement) - len(question) - 5))
        assert tokens[before : before + len(statement)] == statement
        filler = tokens[:before] + tokens[before + len(statement) : -5 - len(question)]
        assert any(ring[start : start + len(filler)] == filler for start in range(len(ring) // 2))


def test_passkey_of_the_twin_differs_in_every_digit(task_of):
    for index in range(30):
        sample = task_of().sample(100, 0.0, index)
        place = len('\nThe pass key is "')
        assert (sample.tokens[place : place + 5] != sample.twin[place : place + 5]).all()


def test_recall_states_several_pairs(task_of):
    firsts = []
    for index in range(20):
        prompt, _ = parts(task_of("recall", pairs=4).sample(400, 0.5, index))
        lines = [line.split(' "') for line in prompt.split("\n") if line.count('"') == 2 and line.endswith('"')]
        pairs = {name: value.rstrip('"') for name, value in lines if len(name) == 4}
        assert len(pairs) == 4
        assert len({value[0] for value in pairs.values()}) == len({name[0] for name in pairs}) == 4
        asked = prompt[prompt.rindex("\n") + 1 :].split(' "')[0]
        firsts.append(list(pairs).index(asked))
    assert len(set(firsts)) > 1, "the others stand on both sides"


def test_filler_that_mentions_the_key_is_not_used(task_of, held_out):
    """The key that would be chosen is written all over the text: another must be taken."""
    key = parts(task_of().sample(200, 0.5, 0))[1]
    mentions = held_out[:3000] + f" {key} ".join(held_out[3000:].split(" "))
    for length in (100, 200, 2000):
        prompt, answer = parts(task_of(text=mentions).sample(length, 0.5, 0))
        assert prompt.count(answer) == 1


def test_text_that_always_gives_the_answer_away_is_refused(task_of):
    with pytest.raises(UsageError, match="does not mention"):
        task_of(text='The pass key is "1". ' * 100).sample(200, 0.5, 0)


def test_too_little_text(task_of, held_out):
    with pytest.raises(UsageError, match="101 tokens, too few"):
        task_of(text=held_out[:100]).sample(300, 0.5, 0)


def test_hash_tells_samples_apart(task_of):
    same = task_of(lengths=(64, 128), depths=(0.5,)).data_hash("corpus")
    assert same == task_of().data_hash("corpus") == task_of(pairs=2).data_hash("corpus")
    others = [task_of().data_hash("other"), task_of("recall").data_hash("corpus"), task_of(seed=1).data_hash("corpus")]
    others += [task_of("recall", pairs=2).data_hash("corpus"), task_of(samples=6).data_hash("corpus")]
    assert len({same, *others}) == 6


# Another tokenizer ---------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def bpe(held_out) -> Tokenizer:
    pytest.importorskip("tokenizers")
    generator = np.random.default_rng(0)
    numbers = " ".join(map(str, generator.integers(0, 99999, 2000)))
    # Half of the syllables occur, and become one token; of the others every letter is one.
    syllables = [consonant + vowel for consonant in CONSONANTS[::2] for vowel in VOWELS]
    words = " ".join("".join(generator.choice(syllables, 2)) for _ in range(4000))
    return train_bpe(450, [held_out, numbers, words])


@pytest.mark.parametrize("name", ["passkey", "recall"])
def test_bpe_states_the_answer_in_the_tokens_it_asks_for(task_of, bpe, name):
    task = task_of(name, tokenizer=bpe, samples=12)
    samples = task.samples(150, 0.5)
    assert len({sample.answer for sample in samples}) > 1, "answers of several lengths, or this proves little"
    for sample in samples:
        tokens, answer = sample.tokens.tolist(), sample.tokens[-sample.answer :].tolist()
        assert len(tokens) == len(sample.twin) == 151
        count = sum(tokens[i : i + len(answer)] == answer for i in range(len(tokens) - len(answer)))
        assert count == 1
        assert bpe.decode(answer) in bpe.decode(tokens[: -len(answer)])
