"""Our language model in Hugging Face transformers: train, save, load, generate. No network.

    python examples/03_hugging_face.py          needs the extra hf: pip install 'dape[hf]'

A tiny decoder learns texts that repeat every two tokens, at length 16, and continues one of length 64.
"""

import tempfile

import torch
from torch.utils.data import Dataset
from transformers import AutoModelForCausalLM, Trainer, TrainingArguments

import dape.hf

LENGTH, VOCABULARY = 16, 10


class Repeating(Dataset):
    """Two random tokens, again and again."""

    def __len__(self) -> int:
        return 4096

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        text = torch.randint(VOCABULARY, (2,), generator=torch.Generator().manual_seed(index)).repeat(LENGTH // 2)
        return {"input_ids": text, "labels": text}


def train(model: dape.hf.DapeForCausalLM, folder: str) -> None:
    arguments = TrainingArguments(
        output_dir=folder,
        max_steps=60,
        per_device_train_batch_size=16,
        learning_rate=1e-2,
        logging_steps=20,
        save_strategy="no",
        report_to=[],
        use_cpu=True,
        disable_tqdm=True,
        dataloader_pin_memory=False,
    )
    # The callback keeps Kerple's r1 and r2 positive after every step.
    project = dape.hf.ProjectPositions()
    Trainer(model=model, args=arguments, train_dataset=Repeating(), callbacks=[project]).train()


def main() -> None:
    torch.manual_seed(0)
    torch.set_num_threads(1)  # of more, such a small model would only wait
    config = dape.hf.DapeConfig(
        layers=2, width=32, heads=4, vocabulary=VOCABULARY, encoding="dape-kerple", train_length=LENGTH
    )
    model = dape.hf.DapeForCausalLM(config)
    with tempfile.TemporaryDirectory() as folder:
        train(model, folder)
        model.save_pretrained(folder)
        loaded = AutoModelForCausalLM.from_pretrained(folder)

    text = torch.tensor([[3, 1]]).repeat(1, 2 * LENGTH)  # four training lengths
    with torch.no_grad():
        same = torch.equal(loaded(text).logits, model.eval()(text).logits)
    print(f"loaded from its folder, logits are the same: {same}")
    new = loaded.generate(text, attention_mask=torch.ones_like(text), max_new_tokens=8, do_sample=False, pad_token_id=0)
    print(f"... 3 1 3 1 goes on with {new[0, -8:].tolist()}")
    assert same


if __name__ == "__main__":
    main()
