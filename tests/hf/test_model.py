"""Our language model in the transformers library: the same numbers, texts and gradients as ours, through its ways."""

import json
import os
from typing import Any

os.environ["HF_HUB_OFFLINE"] = "1"  # before the library is imported, which reads it once

import pytest
import torch
from safetensors.torch import load_file, save_file

import dape

pytest.importorskip("transformers")

from huggingface_hub.errors import StrictDataclassError
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    DynamicCache,
    PreTrainedTokenizerFast,
    StaticCache,
    Trainer,
    TrainingArguments,
    pipeline,
)

from dape.hf import DapeConfig, DapeForCausalLM, ProjectPositions
from dape.models.generate import Sampling, generate

NAMES = ["dape-kerple", "dape-fire", "rope", "alibi", "learned", "cope", "transformer-xl", "dape-v2-kerple"]
SIZES = {"layers": 2, "width": 32, "heads": 4, "vocabulary": 19, "train_length": 16}
RANDOM = "randomized-dape-kerple"


def settings(encoding: str, **others) -> DapeConfig:
    options = {"encoding_options": {"max_positions": 64}} if encoding == "learned" else {}
    return DapeConfig(encoding=encoding, **{**SIZES, **options, **others})


def tiny(encoding: str = "dape-kerple", **others) -> DapeForCausalLM:
    torch.manual_seed(0)
    model = DapeForCausalLM(settings(encoding, **others)).eval()
    with torch.no_grad():
        for p in model.parameters():
            p.mul_(2)  # choices are clear, and depend on the context
    return model


def tokens(rows: int = 2, length: int = 7, seed: int = 1) -> torch.Tensor:
    return torch.randint(1, 19, (rows, length), generator=torch.Generator().manual_seed(seed))


def continued(model: DapeForCausalLM, prompt: torch.Tensor, new: int = 12, **kwargs) -> torch.Tensor:
    kwargs = {"attention_mask": torch.ones_like(prompt), "do_sample": False, "pad_token_id": 0, **kwargs}
    return model.generate(prompt, max_new_tokens=new, **kwargs)[:, prompt.shape[1] :]


def ours(model: DapeForCausalLM, prompt: torch.Tensor, new: int = 12, **kwargs) -> torch.Tensor:
    sampling = kwargs.pop("sampling", Sampling(temperature=0))
    return torch.stack(list(generate(model.model, prompt, new, sampling=sampling, **kwargs)), dim=1)


@pytest.fixture
def folder(tmp_path):
    """Where a model was saved."""

    def save(model: DapeForCausalLM):
        model.save_pretrained(tmp_path / "model")
        return tmp_path / "model"

    return save


# Configuration -------------------------------------------------------------------------------------------------------


def test_the_librarys_names():
    config = DapeConfig(hidden_size=32, num_hidden_layers=3, num_attention_heads=4, vocab_size=19)
    assert (config.width, config.layers, config.heads, config.vocabulary) == (32, 3, 4, 19)
    config.vocab_size = 20
    assert config.for_decoder() == dape.DecoderConfig(layers=3, width=32, heads=4, vocabulary=20)


def test_a_decoder_there_and_back():
    options = {"hidden": 8, "variant": "concat"}
    decoder = dape.DecoderConfig(encoding="dape-alibi", encoding_options=options, train_length=9, share_encoding=True)
    assert DapeConfig.of(decoder, eos_token_id=3).for_decoder() == decoder


def test_the_length_is_a_hint():
    assert settings("rope").max_position_embeddings == 16
    assert settings("rope", max_position_embeddings=4096).max_position_embeddings == 4096
    with torch.no_grad():
        assert tiny("rope")(tokens(1, 50)).logits.shape == (1, 50, 19)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"layres": 2}, "no field 'layres'. Did you mean 'layers'"),
        ({"hiden_size": 32}, "Did you mean 'hidden_size'"),
        ({"encodingoptions": {}}, "Did you mean 'encoding_options'"),
        ({"layers": "2"}, "'layers' expected int, got str"),
        ({"hidden_size": "32"}, "'width' expected int, got str"),
        ({"encoding_options": 3}, "expected a dict, got int"),
        ({"train_length": 0}, "train_length must be at least 1, got 0"),
        ({"width": 30}, "width 30 cannot be divided into 8 heads"),
        ({"encoding": "ropee"}, "Did you mean 'rope'"),
        ({"tie_word_embeddings": True}, "not tied to the embeddings"),
    ],
)
def test_what_cannot_be_meant_is_refused(given, words):
    with pytest.raises((ValueError, StrictDataclassError)) as error:
        DapeConfig(**given)
    assert words in str(error.value)


def test_configurations_are_saved_whole(tmp_path):
    """Defaults too: they may be others in a later version."""
    settings("dape-fire", encoding_options={"hidden": 8}).save_pretrained(tmp_path)
    saved = json.loads((tmp_path / "config.json").read_text())
    assert saved["model_type"] == "dape" and saved["encoding_options"] == {"hidden": 8} and "share_encoding" in saved
    found = AutoConfig.from_pretrained(tmp_path)
    assert (
        isinstance(found, DapeConfig)
        and found.for_decoder() == settings("dape-fire", encoding_options={"hidden": 8}).for_decoder()
    )


def test_options_reach_the_encoding():
    assert tiny("dape-kerple", encoding_options={"hidden": 5}).model.encodings[0].f.first.out_features == 5
    with pytest.raises(TypeError, match="hiden"):
        tiny("dape-kerple", encoding_options={"hiden": 5})


# Weights -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", NAMES)
def test_a_new_model_is_a_new_decoder(name):
    """Of one seed, bit for bit: the library's own initialisation does not touch it."""
    torch.manual_seed(3)
    decoder = dape.DecoderLM(settings(name).for_decoder()).state_dict()
    torch.manual_seed(3)
    model = DapeForCausalLM(settings(name)).model.state_dict()
    assert list(model) == list(decoder)
    assert all(torch.equal(model[key], decoder[key]) for key in decoder)


@pytest.mark.parametrize("name", NAMES)
def test_saving_and_loading_keep_every_bit(name, folder):
    model = tiny(name)
    path = folder(model)
    assert {p.name for p in path.iterdir()} >= {"config.json", "model.safetensors"}
    for loaded in (
        AutoModelForCausalLM.from_pretrained(path),
        DapeForCausalLM.from_pretrained(path, device_map="cpu"),
    ):
        assert isinstance(loaded, DapeForCausalLM) and not loaded.training
        assert {b.shape for b in loaded.buffers()} <= {torch.Size([0])}, "a buffer with values would need a start"
        with torch.no_grad():
            assert torch.equal(loaded(tokens(2, 30)).logits, model(tokens(2, 30)).logits)


@pytest.mark.parametrize("name", ["dape-kerple", "dape-fire", "transformer-xl", "dape-v2-kerple"])
def test_what_a_file_lacks_starts_as_in_a_new_model(name, folder):
    """The library builds models without memory; what it does not find must not stay as it is there."""
    path = folder(tiny(name))
    weights = load_file(path / "model.safetensors")
    kept = {key: tensor for key, tensor in weights.items() if "encodings" not in key and "norm1" not in key}
    save_file(kept, path / "model.safetensors", metadata={"format": "pt"})
    torch.manual_seed(5)
    found: Any = AutoModelForCausalLM.from_pretrained(path, output_loading_info=True)
    loaded, report = found
    assert set(report["missing_keys"]) == set(weights) - set(kept)
    torch.manual_seed(5)
    fresh = dape.DecoderLM(settings(name).for_decoder()).state_dict()
    for key, tensor in loaded.state_dict().items():
        expected = kept[key] if key in kept else fresh[key.removeprefix("model.")]
        assert torch.equal(tensor, expected), key


@pytest.mark.parametrize("name", NAMES)
def test_half_precision_is_near(name, folder):
    model = tiny(name)
    path = folder(model)
    half = AutoModelForCausalLM.from_pretrained(path, dtype=torch.bfloat16)
    assert {p.dtype for p in half.parameters()} == {torch.bfloat16}
    with torch.no_grad():
        whole, rounded = model(tokens()).logits, half(tokens()).logits
    assert rounded.dtype == torch.bfloat16
    assert (whole - rounded).abs().max() < 0.15 * whole.std()
    assert continued(half, tokens(), 3).shape == (2, 3)


def test_another_vocabulary():
    model = tiny()
    with torch.no_grad():
        before = model(tokens()).logits
        model.resize_token_embeddings(23)
        after = model(tokens()).logits
    assert model.config.vocab_size == model.model.config.vocabulary == 23
    assert model.get_input_embeddings().weight.shape == model.get_output_embeddings().weight.shape == (23, 32)
    assert after.shape == (2, 7, 23) and torch.equal(after[..., :19], before)
    assert after.isfinite().all()


def test_a_resized_model_is_saved_as_it_is(folder):
    model = tiny()
    model.resize_token_embeddings(23)
    loaded = AutoModelForCausalLM.from_pretrained(folder(model))
    with torch.no_grad():
        assert torch.equal(loaded(tokens()).logits, model(tokens()).logits)


@pytest.mark.parametrize("implementation", ["sdpa", "flash_attention_2", "flex_attention"])
def test_other_implementations_of_attention_are_refused(implementation, folder):
    with pytest.raises((ValueError, ImportError)):
        AutoModelForCausalLM.from_pretrained(folder(tiny()), attn_implementation=implementation)


# Forward -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", NAMES)
def test_logits_are_those_of_the_decoder(name):
    model = tiny(name)
    with torch.no_grad():
        expected = model.model(tokens(2, 30))
        assert torch.equal(model(tokens(2, 30), use_cache=False).logits, expected)
        torch.testing.assert_close(model(tokens(2, 30)).logits, expected)
        embedded = model.get_input_embeddings()(tokens(2, 30))
        torch.testing.assert_close(model(inputs_embeds=embedded).logits, expected)
        for keep in (1, 4, torch.tensor([3, 5])):
            rows = slice(-keep, None) if isinstance(keep, int) else keep
            torch.testing.assert_close(model(tokens(2, 30), logits_to_keep=keep).logits, expected[:, rows])


def test_the_loss_is_that_of_the_next_token():
    model, text = tiny(), tokens(2, 9)
    labels = text.clone()
    labels[0, :4] = -100
    out = model(text, labels=labels)
    nats = [
        -out.logits[row, i].log_softmax(-1)[text[row, i + 1]]
        for row in (0, 1)
        for i in range(8)
        if row == 1 or i + 1 >= 4
    ]
    torch.testing.assert_close(out.loss, torch.stack(nats).mean())
    torch.testing.assert_close(model(text, labels=labels, num_items_in_batch=26).loss, torch.stack(nats).sum() / 26)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("side", ["left", "right"])
def test_a_padded_text_is_the_text_alone(name, side):
    model, lengths = tiny(name), (11, 4, 7)
    batch, mask = torch.zeros(3, 11, dtype=torch.long), torch.zeros(3, 11, dtype=torch.long)
    where = [slice(11 - n, 11) if side == "left" else slice(0, n) for n in lengths]
    texts = [tokens(1, n, seed=n) for n in lengths]
    for row, (text, place) in enumerate(zip(texts, where, strict=True)):
        batch[row, place], mask[row, place] = text[0], 1
    with torch.no_grad():
        found = model(batch, attention_mask=mask).logits
        for row, (text, place) in enumerate(zip(texts, where, strict=True)):
            torch.testing.assert_close(found[row, place], model(text).logits[0], rtol=0, atol=1e-5)


@pytest.mark.parametrize("name", NAMES)
def test_packed_documents_are_the_documents_alone(name):
    model, lengths = tiny(name), (5, 1, 8)
    texts = [tokens(1, n, seed=n) for n in lengths]
    positions = torch.cat([torch.arange(n) for n in lengths])[None]
    with torch.no_grad():
        found = model(torch.cat(texts, dim=1), position_ids=positions).logits
        alone = torch.cat([model(text).logits for text in texts], dim=1)
    torch.testing.assert_close(found, alone, rtol=0, atol=1e-5)


def test_positions_that_a_cache_cannot_keep_are_refused():
    model, positions = tiny(), torch.tensor([[0, 1, 2, 0, 1, 2, 3]])
    with torch.no_grad(), pytest.raises(ValueError, match="possible only without a cache"):
        model(tokens(), position_ids=positions, use_cache=True)
    with pytest.raises(ValueError, match="7 tokens, but position_ids of shape"):
        model(tokens(), position_ids=positions[:, :4])


@pytest.mark.parametrize("at_padding", [0, 1, 99])
def test_positions_of_padding_do_not_matter(at_padding):
    """Programs fill in different numbers; those of text agree with the mask, also for a cache."""
    model, mask = tiny("dape-fire"), torch.tensor([[0, 0, 1, 1, 1, 1, 1], [1] * 7])
    positions = (mask.cumsum(1) - 1).masked_fill(mask == 0, at_padding)
    with torch.no_grad():
        expected = model(tokens(), attention_mask=mask, use_cache=True).logits
        found = model(tokens(), attention_mask=mask, position_ids=positions, use_cache=True).logits
    assert torch.equal(found, expected)


def test_masks_of_other_forms_are_refused():
    model = tiny()
    for mask in (torch.ones(2, 1, 7, 7), torch.ones(2, 6), torch.ones(1, 7)):
        with pytest.raises(ValueError, match=r"attention_mask must be \[batch, tokens\] = \[2, 7\]"):
            model(tokens(), attention_mask=mask)
    cache = model(tokens(), use_cache=True).past_key_values
    with pytest.raises(ValueError, match=r"= \[2, 9\], 7 of them in the cache"):
        model(tokens(2, 2), attention_mask=torch.ones(2, 2), past_key_values=cache)


def test_either_tokens_or_embeddings():
    with pytest.raises(ValueError, match="exactly one of input_ids and inputs_embeds"):
        tiny()()
    with pytest.raises(ValueError, match="exactly one of input_ids and inputs_embeds"):
        tiny()(tokens(), inputs_embeds=torch.zeros(2, 7, 32))


def test_hidden_states_and_tuples():
    model = tiny()
    with torch.no_grad():
        out = model(tokens(), output_hidden_states=True, logits_to_keep=2)
        assert [tuple(x.shape) for x in out.hidden_states] == [(2, 7, 32)] * 3
        torch.testing.assert_close(out.hidden_states[0], model.model.embedding(tokens()))
        torch.testing.assert_close(model.model.head(out.hidden_states[-1])[:, -2:], out.logits)
        assert model(tokens()).hidden_states is None
        (logits,) = model(tokens(), use_cache=False, return_dict=False)
        torch.testing.assert_close(logits[:, -2:], out.logits)
    with pytest.raises(ValueError, match=r"dape\.intermediates"):
        model(tokens(), output_attentions=True)


# Caches and generation -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["dynamic", "static"])
@pytest.mark.parametrize("name", NAMES)
def test_parts_with_a_cache_are_the_whole(name, kind):
    model, text = tiny(name).double(), tokens(2, 23)
    cache = DynamicCache(config=model.config) if kind == "dynamic" else StaticCache(model.config, max_cache_len=30)
    with torch.no_grad():
        parts = [model(part, past_key_values=cache).logits for part in text.split([9, 1, 3, 1, 9], dim=1)]
        torch.testing.assert_close(torch.cat(parts, dim=1), model.model(text))
    assert int(cache.get_seq_length()) == 23


def test_a_cache_by_default_only_where_it_is_of_use():
    model = tiny()
    assert isinstance(model(tokens()).past_key_values, DynamicCache)
    assert model(tokens(), use_cache=False).past_key_values is None
    assert model.train()(tokens()).past_key_values is None
    with pytest.raises(TypeError, match="must be a Cache of transformers, got tuple"):
        model(tokens(), past_key_values=((torch.zeros(1), torch.zeros(1)),))


@pytest.mark.parametrize("name", NAMES)
def test_greedy_texts_are_ours(name):
    model, prompt = tiny(name), tokens()
    expected = ours(model, prompt)
    assert len(expected.unique()) > 1
    for way in ({}, {"use_cache": False}, {"cache_implementation": "static"}, {"prompt_lookup_num_tokens": 3}):
        rows = prompt if "prompt_lookup_num_tokens" not in way else prompt[:1]  # for one text at a time only
        assert torch.equal(continued(model, rows, **way), expected[: len(rows)]), way


@pytest.mark.parametrize("name", NAMES)
def test_left_padded_prompts_are_continued_as_alone(name):
    model, lengths = tiny(name), (9, 3, 6)
    prompts = [tokens(1, n, seed=n) for n in lengths]
    batch = torch.cat([torch.nn.functional.pad(p, (9 - p.shape[1], 0)) for p in prompts])
    mask = torch.cat([torch.nn.functional.pad(torch.ones_like(p), (9 - p.shape[1], 0)) for p in prompts])
    expected = torch.cat([ours(model, p) for p in prompts])
    for way in ({}, {"use_cache": False}, {"cache_implementation": "static"}):
        assert torch.equal(continued(model, batch, attention_mask=mask, **way), expected), way


@pytest.mark.parametrize("name", ["dape-kerple", "dape-fire", "rope"])
def test_sampling_and_beams_do_not_depend_on_the_cache(name):
    model, prompt = tiny(name), tokens()
    for way in ({"do_sample": True, "top_k": 5, "temperature": 1.3}, {"num_beams": 3}):
        found = []
        for cache in ({}, {"use_cache": False}, {"cache_implementation": "static"}):
            torch.manual_seed(0)
            found.append(continued(model, prompt, **way, **cache))
        assert torch.equal(found[0], found[1]) and torch.equal(found[0], found[2])


def test_beams_are_the_likeliest_texts():
    """As many beams as there are texts find the best one."""
    model, prompt = tiny(vocabulary=5), tokens(1) % 5
    best = continued(model, prompt, 2, num_beams=5, length_penalty=0.0)
    texts = torch.cartesian_prod(torch.arange(5), torch.arange(5))
    whole = torch.cat([prompt.expand(25, -1), texts], dim=1)
    with torch.no_grad():
        likely = model(whole).logits.log_softmax(-1)[:, -3:-1].gather(-1, texts.unsqueeze(-1)).sum((1, 2))
    assert torch.equal(best[0], texts[likely.argmax()])


def test_sampling_is_ours():
    """With the same seed: both draw with torch.multinomial."""
    model, prompt = tiny(), tokens(1)
    torch.manual_seed(4)
    found = continued(model, prompt, do_sample=True, temperature=0.9, top_k=0)
    generator = torch.Generator().manual_seed(4)
    assert torch.equal(found, ours(model, prompt, sampling=Sampling(temperature=0.9), generator=generator))


def test_embeddings_as_a_prompt():
    model, prompt = tiny(), tokens()
    found = model.generate(
        inputs_embeds=model.get_input_embeddings()(prompt),
        attention_mask=torch.ones_like(prompt),
        max_new_tokens=6,
        do_sample=False,
        pad_token_id=0,
    )
    assert torch.equal(found, ours(model, prompt, 6))


def test_randomised_positions_are_fixed_around_a_text():
    model, prompt = tiny(RANDOM), tokens()
    with model.drawn(19, torch.Generator().manual_seed(2)):
        found = continued(model, prompt)
        assert torch.equal(continued(model, prompt, use_cache=False), found)
    assert torch.equal(ours(model, prompt, generator=torch.Generator().manual_seed(2)), found)
    with torch.no_grad():
        assert not torch.equal(model(tokens(2, 16)).logits, model(tokens(2, 16)).logits), "drawn anew for every call"


@pytest.mark.parametrize("way", [{}, {"use_cache": False}])
def test_randomised_positions_without_a_draw_are_refused(way):
    model = tiny(RANDOM)
    with pytest.raises(ValueError, match=r"with model\.drawn"):
        continued(model, tokens(), **way)
    with pytest.raises(ValueError, match=r"with model\.drawn"):
        model(tokens(), use_cache=True)


# Training ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["dape-kerple", "learned", RANDOM])
@pytest.mark.parametrize("reentrant", [False, True])
def test_gradient_checkpointing_changes_no_gradient(name, reentrant):
    text, grads = tokens(2, 12), []
    for lean in (False, True):
        model = tiny(name).train()
        if lean:
            model.gradient_checkpointing_enable({"use_reentrant": reentrant})
        torch.manual_seed(0)  # of the draw
        model(text, labels=text).loss.backward()
        grads.append([p.grad for p in model.parameters()])
    for one, other in zip(*grads, strict=True):
        torch.testing.assert_close(one, other)


def test_gradient_checkpointing_computes_blocks_twice():
    model, calls = tiny().train(), []
    model.gradient_checkpointing_enable()
    model.model.blocks[0].attention.qkv.register_forward_hook(lambda *_: calls.append(1))
    model(tokens(), labels=tokens()).loss.backward()
    assert len(calls) == 2
    cache = tiny()(tokens()).past_key_values
    with pytest.raises(ValueError, match="would store twice"):
        model(tokens(), past_key_values=cache, attention_mask=torch.ones(2, 14))
    calls.clear()
    model.gradient_checkpointing_disable()
    model(tokens(), labels=tokens()).loss.backward()
    assert len(calls) == 1


class Repeating(torch.utils.data.Dataset):
    """Three tokens, again and again."""

    def __len__(self) -> int:
        return 64

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        text = tokens(1, 3, seed=index)[0].repeat(6)[:16]
        return {"input_ids": text, "labels": text}


def trainer(model: DapeForCausalLM, path, steps: int) -> Trainer:
    arguments = TrainingArguments(
        output_dir=str(path),
        max_steps=steps,
        per_device_train_batch_size=8,
        learning_rate=5e-3,
        lr_scheduler_type="constant",
        logging_steps=1,
        save_steps=4,
        save_strategy="steps",
        report_to=[],
        use_cpu=True,
        disable_tqdm=True,
        dataloader_pin_memory=False,
    )
    return Trainer(model=model, args=arguments, train_dataset=Repeating(), callbacks=[ProjectPositions()])


def losses(run: Trainer) -> list[float]:
    return [line["loss"] for line in run.state.log_history if "loss" in line]


def test_the_trainer_learns_and_resumes(tmp_path):
    torch.manual_seed(0)
    model = DapeForCausalLM(settings("dape-kerple"))
    run = trainer(model, tmp_path / "a", 12)
    run.train()
    assert sum(losses(run)[-3:]) < 0.9 * sum(losses(run)[:3])
    torch.manual_seed(1)
    again = DapeForCausalLM(settings("dape-kerple"))
    resumed = trainer(again, tmp_path / "a", 12)
    resumed.train(resume_from_checkpoint=str(tmp_path / "a" / "checkpoint-8"))
    for one, other in zip(model.parameters(), again.parameters(), strict=True):
        torch.testing.assert_close(one, other)


def test_the_trainer_keeps_parameters_in_range(tmp_path):
    model = DapeForCausalLM(settings("kerple"))
    with torch.no_grad():
        for pe in model.model.encodings:
            pe.r2.fill_(-1.0)
    trainer(model, tmp_path, 1).train()
    assert all(bool(pe.r2.gt(0).all()) for pe in model.model.encodings)


@pytest.mark.compile
@pytest.mark.parametrize(("name", "whole"), [("dape-kerple", True), ("dape-fire", False)])
def test_compiled(name, whole):
    """Tables over lags are part of the graph; tiles, which padding and FIRE need, are called between graphs."""
    model, mask = tiny(name), torch.ones(2, 7, dtype=torch.long)
    mask[0, :3] = 0
    with torch.no_grad():
        for kwargs in ({}, {"attention_mask": mask}):
            compiled = torch.compile(model, backend="aot_eager", fullgraph=whole and not kwargs)
            found, expected = (m(tokens(), use_cache=False, **kwargs).logits for m in (compiled, model))
            text = mask.bool() if kwargs else torch.ones_like(mask).bool()
            torch.testing.assert_close(found[text], expected[text], rtol=1e-4, atol=1e-5)


# Pipelines -----------------------------------------------------------------------------------------------------------


def test_a_pipeline_without_network(folder):
    from tokenizers import Tokenizer, models, pre_tokenizers

    words = {word: i for i, word in enumerate(["[PAD]", *"abcdefghijklmnopqr"])}
    library = Tokenizer(models.WordLevel(words, unk_token="[PAD]"))
    library.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=library, pad_token="[PAD]", padding_side="left")
    model = tiny(pad_token_id=0)
    path = folder(model)
    tokenizer.save_pretrained(path)
    write = pipeline("text-generation", model=str(path))
    prompts = ["a b c d e", "f g"]
    options = {"max_new_tokens": 5, "do_sample": False, "return_full_text": False, "max_length": None}
    alone = [write(prompt, **options)[0]["generated_text"] for prompt in prompts]
    together = [found[0]["generated_text"] for found in write(prompts, batch_size=2, **options)]
    assert alone == together
    expected = ours(model, tokenizer(prompts[0], return_tensors="pt")["input_ids"], 5)
    assert alone[0].split() == tokenizer.decode(expected[0]).split()
