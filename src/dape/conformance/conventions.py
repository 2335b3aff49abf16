"""The conventions of the vectors in words, as every file carries them."""

from dape.positional.names import parse

GENERAL = """\
Axes: h heads, q query rows, k keys, d head width, m model width. No batch axis.
Positions count from 0. A lag is i - j, query minus key. causal: key j is visible to query i if j <= i.
Scores A = q . k / sqrt(d), in float64, after the rotation if there is one. logits = what goes into mask and softmax.
logits [h, q, k] hold the rows at q_pos only; hidden cells hold 0 and mean nothing.
Where q and k are given they are the tokens 0, 1, 2, ...; else A = 0 and the logits are the bias B itself.
Gradients are those of sum(weight * softmax(logits)), softmax over visible keys. Of q they are whole, [h, t, d].
Inputs and parameters are multiples of 1/64, exact in float16, bfloat16, float32 and float64.
Parameters are named as in the state dict of dape's module; a matrix W of `weight` [out, in] acts as x W^T + bias."""
EMBEDDINGS = "embedded [t, m] = what enters the model; gradients are those of sum(weight * embedded)."
OF_BASE = {
    "nope": "Nothing is added: logits = A.",
    "sinusoidal": "Halves layout: the sines of all frequencies, then their cosines; w_c = 10000^(-2c/m).",
    "learned": "Row p of the table is added to the token at position p.",
    "rope": "Channel pairs are (c, c + d/2), not (2c, 2c + 1); angle p w_c, w_c = 10000^(-2c/d).",
    "pi": "rope at p / s with s = max(1, length / train_length): the same stretch for all tokens.",
    "yarn": "beta_fast 32, beta_slow 1, s = max(1, length / train_length); q and k are each multiplied by"
    " 0.1 ln s + 1.",
    "ntk": "rope with base 10000 s^(d/(d-2)), s = max(1, length / train_length).",
    "dynamic": "rope with base 10000 (f s - (f - 1))^(d/(d-2)), f = 2, s = max(1, length / train_length).",
    "llama3": "f = 8, low_freq_factor 1, high_freq_factor 4; L = train_length; linear in the turns L w_m / (2 pi).",
    "longrope": "short_m = 1, long_m = 8^(2m/(d-2)) beyond train_length; q and k are each multiplied by"
    " sqrt(1 + ln 8 / ln train_length) at every length.",
    "partial": "The first half of the channels turns, w_c = 10000^(-2c/(d/2)); pairs are (c, c + d/4).",
    "proportional": "The first 3/4 of the pairs (c, c + d/2) turn, w_c = 10000^(-2c/d); the others stand still.",
    "t5": "32 buckets, max distance 128, causal; the bias is multiplied by sqrt(d) as in DAPE's program (T5 has 1).",
    "alibi": "Slopes of ALiBi's program, which differ from its text unless h is a power of two; true distance, not"
    " +m j. Without mask, past keys count half a step nearer.",
    "kerple": "Natural logarithm of 1 + r2 |i-j|; r1 and r2 below 0.01 count as 0.01. Without mask as alibi.",
    "kerple-power": "r1 and r2 below 0.01 count as 0.01, r2 above 2 as 2. Without mask as alibi.",
    "sandwich": "Width 128, frequencies 10000^(-2c/128) from c = 0, minus 64, times h_max / (8 head), heads from 1.",
    "fire": "psi(x) = ln(1 + |c x|), denominator psi(max(L, i)) + 1e-6, L = |threshold_multiplier| train_length; ReLU.",
    "fox": "entering [t, m] is x; gates sigmoid(x w^T + b) in float64; c sums the gate of the token itself, too, so"
    " that the key itself has bias 0.",
    "inkling": "entering [t, m] is x; r = x w_r^T, head by head; B = 0 from lag extent on; A and B are both multiplied"
    " by 1 + 0.1 ln(max(1, (i + 1) / train_length)).",
    "rerope": "q and k are not turned yet; the lag that the rotation of rope sees is i - j below `window`, `window`"
    " itself from there on.",
    "self-extend": "q and k are not turned yet; below `window` the lag is i - j, from there on floor(i / group) -"
    " floor(j / group) + window - floor(window / group).",
    "talking-heads": "logits_h = A_h + sum_g mix[h, g] A_g, hidden cells included; before softmax only.",
    "multi-token": "After rope: near = A + sum_t theta[h, t] A(i, j + t - kernel // 2) with hidden A and A beyond the"
    " ends set to 0 (cross-correlation, as torch); logits_h = near_h + sum_g mix[h, g] near of the g-th head of h's"
    " group of 2 neighbouring heads. theta and mix come on top of the identity.",
    "transformer-xl": "s(i - j) in halves layout, width h d; causal: at i - j, without mask: at j - i.",
    "cope": "Gates sigmoid(A) of visible keys; the count includes the key itself; q E is not divided by sqrt(d).",
}
OF_WRAPPER = {
    "dape-": "f reads [A; B], scores first, hidden cells included (it acts on one cell at a time); LeakyReLU of slope"
    " 0.01; mask after f. FIRE inside has LeakyReLU, too.",
    "dape-v2-": "f is two convolutions 1 x 3 along the keys (cross-correlation, as torch), zero padding; hidden cells"
    " are set to 0 before each of them.",
}


def conventions_of(name: str) -> str:
    parsed = parse(name)
    own = [text[key] for text, key in ((OF_BASE, parsed.base), (OF_WRAPPER, parsed.wrapper)) if key in text]
    embeds = [EMBEDDINGS] if parsed.base in ("sinusoidal", "learned") else []
    return "\n".join([GENERAL, *embeds, *own])
