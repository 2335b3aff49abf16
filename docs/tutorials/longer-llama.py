# %% [markdown]
# # Longer reach for my Llama
#
# A model that exists can be given longer reach without touching its weights: `dape.extend` puts a DAPE adapter of a few thousand
# numbers into it, trains the adapter on your text, and measures perplexity before and after. Here the Llama is a tiny one with random
# weights, so that nothing is downloaded; in its place give the folder of any model of `transformers` (the extra `hf`).

# %%
from pathlib import Path

import torch
import transformers

import dape
import dape.hf

Path("book.txt").write_text(" ".join(f"chapter {n % 11} has {n % 7} pages and {n % 13} pictures." for n in range(2000)))
torch.manual_seed(0)
sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
config = transformers.LlamaConfig(vocab_size=257, max_position_embeddings=32, **sizes)
transformers.LlamaForCausalLM(config).save_pretrained("llama")

# %% [markdown]
# The model knows 32 positions. It is trained a little at those (`steps`), measured at up to 4 times as many. A real model has been
# trained; this one has not, so that its perplexity is that of guessing and the table shows the way rather than a success.

# %%
longer = dape.extend("llama", data="book.txt", steps=20, batch=4, windows=8, lengths=(32, 64, 128), out="runs/longer")
print(longer.table())

# %% [markdown]
# The adapter is a folder of kilobytes, laid out as peft does it. Load it into the model, in this process or another one:

# %%
model = transformers.AutoModelForCausalLM.from_pretrained("llama")
dape.hf.load_adapter(model, longer.adapter)
print(*sorted(file.name for file in longer.adapter.iterdir()))

# %%
tokens = torch.arange(60)[None]
print(
    model.generate(tokens, attention_mask=torch.ones_like(tokens), max_new_tokens=4, do_sample=False)[0, -4:].tolist()
)

# %% [markdown]
# In the terminal: `dape extend FOLDER --data book.txt`. What such adapters bring to trained models, measured:
# [Adapters](../adapters.md).
