"""From text to batches: sources of documents, tokenizers, prepared folders, training and evaluation windows. No torch.

Text is read and cleaned by ``sources``, becomes ids in ``tokenizer``, is written by ``prepare`` and read back by
``store``; ``corpora`` finds or makes a prepared folder for what a user typed after ``--data``; ``windows`` cuts it.
"""
