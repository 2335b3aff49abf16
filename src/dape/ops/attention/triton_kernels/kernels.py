# Type checkers do not understand kernel code, which triton compiles with types of its own.
# pyright: reportIndexIssue=false, reportOperatorIssue=false, reportArgumentType=false, reportCallIssue=false
# pyright: reportAttributeAccessIssue=false, reportPossiblyUnboundVariable=false, reportReturnType=false
# pyright: reportGeneralTypeIssues=false, reportAssignmentType=false, reportMissingImports=false
"""The kernels. A tile is [head, row, key] with all heads (f mixes them), padded to powers of two: HP heads, M rows,
N keys, DP hidden units. A product reads PK columns of keys or PV columns of values at once, and a program sums SK or SV
columns of a result. These are all columns, padded, if they fit.

    S = q k' scale,   z = Wa S + pre,   L = S + static + W2 (leaky(z) - leaky(pre)),   out = softmax(mask(L)) v

f reads *cells*, [row * key, head], so that its two layers are ordinary matrix products. The host computes f of the
position alone, W2 leaky(pre), in float32 as part of ``static``. The kernels round operands of products to half
precision. At large distances ``pre`` is in the hundreds, and the error of a rounded hidden unit would be as large as
the scores. The difference that S makes in a hidden unit is never larger than Wa S.

Statistics of the softmax keep their last dimension; without it, the compiler converts the layout of the whole tile.
``static`` and the logits are in base 2. Operands of products are rounded to the dtype STORE and multiplied in TYPE.
These are the same, except under the interpreter, which multiplies bfloat16 wrongly: there TYPE is float32. f's operands
are multiplied by SHRINK, a power of two, before they are rounded, so that float16 does not overflow.

Position terms: with TABLES, static is [head, lag] and pre [lag, DP], both from the largest lag downwards, so that row i
and key j find entry ``start - i + j``; otherwise both have an entry for every cell, [item, channel, row, key].

With PIECES too, both are piecewise linear functions of u = table[lag] * of_rows[row], [piece, slope or level, channel].
``static`` then does not include f of the position alone, which would have more pieces. The kernels compute whole hidden
units instead. That is exact enough, because u, and therefore ``pre``, does not grow with distance.
"""

import triton
import triton.language as tl

from dape.ops.attention.triton_kernels.products import LOG2_E, cells, dot, planes, turn
from dape.ops.attention.triton_kernels.ramps import (
    entries,
    gradient_along,
    of_each_row,
    on_pieces,
    place_of_cells,
    sums_in_pieces,
)

_SIZES = ["offset", "start", "queries", "keys", "span", "static_c", "static_i", "static_r", "pre_c", "pre_i", "pre_r",
          "of_rows_i"]  # fmt: skip
"""Arguments that change from call to call: with specialisation, every decoded token would compile a kernel."""


@triton.jit
def _rows(x, item, rows, count, first, x_b, x_h, x_t, HEADS: tl.constexpr, GROUP: tl.constexpr, WIDTH: tl.constexpr,
          HP: tl.constexpr, COLUMNS: tl.constexpr, EVICT: tl.constexpr = "evict_last"):  # fmt: skip
    """[HP, rows, COLUMNS] from column ``first`` on; GROUP heads share a head of x.

    A tile reads some rows twice, because shared memory has no room to keep those of wide heads. The second read has
    another EVICT, so that the compiler does not combine the two."""
    h = tl.arange(0, HP)[:, None, None]
    c = first + tl.arange(0, COLUMNS)[None, None, :]
    r = rows[None, :, None]
    where = item.to(tl.int64) * x_b + (h // GROUP) * x_h + r * x_t + c
    return tl.load(x + where, mask=(h < HEADS) & (r < count) & (c < WIDTH), other=0.0, eviction_policy=EVICT)


@triton.jit
def _store_rows(x, value, item, rows, count, first, x_b, x_h, x_t, HEADS: tl.constexpr, WIDTH: tl.constexpr,
                HP: tl.constexpr, COLUMNS: tl.constexpr):  # fmt: skip
    h = tl.arange(0, HP)[:, None, None]
    c = first + tl.arange(0, COLUMNS)[None, None, :]
    r = rows[None, :, None]
    where = item.to(tl.int64) * x_b + h * x_h + r * x_t + c
    tl.store(x + where, value.to(x.dtype.element_ty), mask=(h < HEADS) & (r < count) & (c < WIDTH))


@triton.jit
def _row_values(x, item, rows, count, x_b, x_h, HEADS: tl.constexpr, HP: tl.constexpr, OTHER: tl.constexpr):
    """[HP, rows, 1]"""
    h = tl.arange(0, HP)[:, None, None]
    r = rows[None, :, None]
    return tl.load(x + item.to(tl.int64) * x_b + h * x_h + r, mask=(h < HEADS) & (r < count), other=OTHER)


@triton.jit
def _store_row_values(x, value, item, rows, count, x_b, x_h, X_T: tl.constexpr, HEADS: tl.constexpr,
                      HP: tl.constexpr):  # fmt: skip
    h = tl.arange(0, HP)[:, None, None]
    r = rows[None, :, None]
    tl.store(x + item.to(tl.int64) * x_b + h * x_h + r * X_T, value, mask=(h < HEADS) & (r < count))


@triton.jit
def _product(a, rows, queries, a_b, a_h, a_t, b, cols, keys, b_b, b_h, b_t, item, HEADS: tl.constexpr,
             GROUP: tl.constexpr, WIDTH: tl.constexpr, HP: tl.constexpr, PIECE: tl.constexpr,
             STORE: tl.constexpr, TYPE: tl.constexpr):  # fmt: skip
    """Rows of a times rows of b, [HP, rows, cols], PIECE columns at a time, as many as fit in shared memory."""
    x = _rows(a, item, rows, queries, 0, a_b, a_h, a_t, HEADS, 1, WIDTH, HP, PIECE)
    y = _rows(b, item, cols, keys, 0, b_b, b_h, b_t, HEADS, GROUP, WIDTH, HP, PIECE)
    total = dot(x, turn(y), STORE, TYPE)
    for first in tl.static_range(PIECE, WIDTH, PIECE):
        x = _rows(a, item, rows, queries, first, a_b, a_h, a_t, HEADS, 1, WIDTH, HP, PIECE)
        y = _rows(b, item, cols, keys, first, b_b, b_h, b_t, HEADS, GROUP, WIDTH, HP, PIECE)
        total += dot(x, turn(y), STORE, TYPE)
    return total


@triton.jit
def _pre(pre, item, i0, j0, queries, keys, start, pre_i, pre_c, pre_r, along, piece, PIECES: tl.constexpr,
         TABLES: tl.constexpr, HIDDEN: tl.constexpr, DP: tl.constexpr, M: tl.constexpr, N: tl.constexpr):  # fmt: skip
    """[M * N, DP]"""
    if PIECES:
        return on_pieces(pre, along, piece, DP)
    cell = tl.arange(0, M * N)[:, None]
    u = tl.arange(0, DP)[None, :]
    i, j = i0 + cell // N, j0 + cell % N
    inside = (i < queries) & (j < keys)
    if TABLES:
        return tl.load(pre + (start - i + j) * DP + u, mask=inside, other=0.0)
    where = item.to(tl.int64) * pre_i + u * pre_c + i * pre_r + j
    return tl.load(pre + where, mask=inside & (u < HIDDEN), other=0.0)


@triton.jit
def _layer(x, weight, HP: tl.constexpr, DP: tl.constexpr, STORE: tl.constexpr, TYPE: tl.constexpr):
    """x times a matrix of f, given by addresses. In half precision both are split into a rounded part and its rounding
    error (the one of the weights follows in memory), so that the product is nearly as precise as in float32."""
    upper = tl.load(weight)
    total = dot(x, upper, STORE, TYPE)
    if tl.float32 != STORE:
        total += dot(x - x.to(STORE).to(tl.float32), upper, STORE, TYPE)
        total += dot(x, tl.load(weight + HP * DP), STORE, TYPE)
    return total


@triton.jit
def _leaky(x, SLOPE: tl.constexpr):
    return tl.where(x > 0, x, x * SLOPE)


@triton.jit
def _of_position(own, PIECES: tl.constexpr, SLOPE: tl.constexpr):
    """Hidden units without scores, and their slopes: the part that the static term includes."""
    if PIECES:
        return tl.zeros_like(own), tl.zeros_like(own)
    return _leaky(own, SLOPE), tl.where(own > 0, 1.0, SLOPE)


@triton.jit
def _finish(logits, static, padding, item, i0, j0, queries, keys, offset, start, static_i, static_c, static_r,
            along, piece, PIECES: tl.constexpr,
            TABLES: tl.constexpr, CAUSAL: tl.constexpr, STATIC: tl.constexpr, PADDING: tl.constexpr,
            HEADS: tl.constexpr, HP: tl.constexpr, M: tl.constexpr, N: tl.constexpr):  # fmt: skip
    """Base-2 logits with the static term, -inf where hidden."""
    h = tl.arange(0, HP)[:, None, None]
    i = i0 + tl.arange(0, M)[None, :, None]
    j = j0 + tl.arange(0, N)[None, None, :]
    logits = logits * LOG2_E
    visible = j < keys
    if PIECES:
        logits += planes(on_pieces(static, along, piece, HP), HP, M, N)
    elif STATIC:
        if TABLES:
            where = h * static_c + (start - i + j)
        else:
            where = item.to(tl.int64) * static_i + h * static_c + i * static_r + j
        logits += tl.load(static + where, mask=(h < HEADS) & (i < queries) & (j < keys), other=0.0)
    if CAUSAL:
        visible = visible & (j <= i + offset)
    if PADDING:
        hidden = tl.load(padding + item.to(tl.int64) * keys + j, mask=j < keys, other=1)
        visible = visible & (hidden == 0)
    return tl.where(visible, logits, -float("inf"))


@triton.jit(do_not_specialize=_SIZES)
def forward(
    q, k, v, wa, w2, static, pre, table, of_rows, kinks, padding, out, softmax,
    scale, offset, start, queries, keys, span,
    q_b, q_h, q_t, k_b, k_h, k_t, v_b, v_h, v_t, out_s, out_b, out_h, out_t, softmax_s,
    softmax_b, softmax_h,
    static_i, static_c, static_r, pre_i, pre_c, pre_r, of_rows_i,
    HEADS: tl.constexpr, GROUP: tl.constexpr, WIDTH: tl.constexpr, VALUES: tl.constexpr, HIDDEN: tl.constexpr,
    PK: tl.constexpr, PV: tl.constexpr, SK: tl.constexpr, SV: tl.constexpr,
    HP: tl.constexpr, DP: tl.constexpr, M: tl.constexpr, N: tl.constexpr, PIECES: tl.constexpr, KINKS: tl.constexpr,
    MIX: tl.constexpr, TABLES: tl.constexpr, CAUSAL: tl.constexpr, STATIC: tl.constexpr, PADDING: tl.constexpr,
    SLOPE: tl.constexpr, SHRINK: tl.constexpr, STORE: tl.constexpr, TYPE: tl.constexpr,
):  # fmt: skip
    """A program computes SV columns of the output for M query rows of one item and ``span`` keys (all keys, except in
    decoding)."""
    SHARES: tl.constexpr = (VALUES + SV - 1) // SV
    i0 = tl.program_id(0) * M
    item = tl.program_id(1)
    part = tl.program_id(2) // SHARES
    mine = tl.program_id(2) % SHARES * SV
    rows = i0 + tl.arange(0, M)
    if PK >= WIDTH:
        queries_here = _rows(q, item, rows, queries, 0, q_b, q_h, q_t, HEADS, 1, WIDTH, HP, PK)
    if MIX:
        h, u = tl.arange(0, HP), tl.arange(0, DP)
        wa_t = wa + u[None, :] * HP + h[:, None]
        w2_t = w2 + h[None, :] * DP + u[:, None]
    largest = tl.full((HP, M, 1), -float("inf"), tl.float32)
    total = tl.zeros((HP, M, 1), tl.float32)
    sums = tl.zeros((HP, M, SV), tl.float32)
    begin = part * span
    end = tl.minimum(keys, begin + span)
    if CAUSAL:
        end = tl.minimum(end, offset + i0 + M)
    for j0 in tl.range(begin, end, N, disable_licm=True):
        cols = j0 + tl.arange(0, N)
        if PK >= WIDTH:
            key = _rows(k, item, cols, keys, 0, k_b, k_h, k_t, HEADS, GROUP, WIDTH, HP, PK)
            logits = dot(queries_here, turn(key), STORE, TYPE) * scale
        else:
            logits = _product(q, rows, queries, q_b, q_h, q_t, k, cols, keys, k_b, k_h, k_t, item,
                              HEADS, GROUP, WIDTH, HP, PK, STORE, TYPE) * scale  # fmt: skip
        along, piece = place_of_cells(table, of_rows, kinks, item, i0, j0, queries, keys, start, of_rows_i, KINKS, M, N)
        if MIX:
            z = _layer(cells(logits, HP, M, N) * SHRINK, wa_t, HP, DP, STORE, TYPE) * (1 / SHRINK)
            own = _pre(pre, item, i0, j0, queries, keys, start, pre_i, pre_c, pre_r, along, piece, PIECES, TABLES,
                       HIDDEN, DP, M, N)  # fmt: skip
            change = _leaky(z + own, SLOPE) - _of_position(own, PIECES, SLOPE)[0]
            logits += planes(_layer(change * SHRINK, w2_t, HP, DP, STORE, TYPE), HP, M, N) * (1 / SHRINK)
        logits = _finish(logits, static, padding, item, i0, j0, queries, keys, offset, start,
                         static_i, static_c, static_r, along, piece, PIECES, TABLES, CAUSAL, STATIC, PADDING,
                         HEADS, HP, M, N)  # fmt: skip
        now = tl.maximum(largest, tl.max(logits, axis=2, keep_dims=True))
        safe = tl.where(now == -float("inf"), 0.0, now)
        p = tl.exp2(logits - safe)
        shrink = tl.exp2(largest - safe)
        total = total * shrink + tl.sum(p, axis=2, keep_dims=True)
        value = _rows(v, item, cols, keys, mine, v_b, v_h, v_t, HEADS, GROUP, VALUES, HP, SV)
        sums = sums * shrink + dot(p, value, STORE, TYPE)
        largest = now
    nothing = total == 0.0
    sums = sums / tl.where(nothing, 1.0, total)
    place = out + part.to(tl.int64) * out_s
    _store_rows(place, sums, item, rows, queries, mine, out_b, out_h, out_t, HEADS, VALUES, HP, SV)
    if mine == 0:
        place = softmax + part.to(tl.int64) * softmax_s
        _store_row_values(place, largest, item, rows, queries, softmax_b, softmax_h, 2, HEADS, HP)
        _store_row_values(place + 1, total, item, rows, queries, softmax_b, softmax_h, 2, HEADS, HP)


@triton.jit
def _weights(
    scores, top, inverse, wa, w2, static, pre, along, piece, padding,
    item, i0, j0, offset, start, queries, keys, static_i, static_c, static_r, pre_i, pre_c, pre_r,
    HEADS: tl.constexpr, HIDDEN: tl.constexpr, HP: tl.constexpr, DP: tl.constexpr, M: tl.constexpr, N: tl.constexpr,
    PIECES: tl.constexpr,
    MIX: tl.constexpr, TABLES: tl.constexpr, CAUSAL: tl.constexpr, STATIC: tl.constexpr, PADDING: tl.constexpr,
    SLOPE: tl.constexpr, SHRINK: tl.constexpr, STORE: tl.constexpr, TYPE: tl.constexpr,
):  # fmt: skip
    """Weights p, [HP, M, N], from the scores, the largest logit of each row and the reciprocal of its sum. Also, as
    cells: the scores and the change they make in the hidden units (both times SHRINK), the slopes of the hidden units,
    and the change that the scores make in these slopes."""
    logits = scores
    if MIX:
        h, u = tl.arange(0, HP), tl.arange(0, DP)
        x = cells(scores, HP, M, N) * SHRINK
        z = _layer(x, wa + u[None, :] * HP + h[:, None], HP, DP, STORE, TYPE) * (1 / SHRINK)
        own = _pre(pre, item, i0, j0, queries, keys, start, pre_i, pre_c, pre_r, along, piece, PIECES, TABLES,
                   HIDDEN, DP, M, N)  # fmt: skip
        z += own
        unmoved, unmoved_slope = _of_position(own, PIECES, SLOPE)
        change = (_leaky(z, SLOPE) - unmoved) * SHRINK
        slope = tl.where(z > 0, 1.0, SLOPE)
        turned = slope - unmoved_slope
        y = _layer(change, w2 + h[None, :] * DP + u[:, None], HP, DP, STORE, TYPE)
        logits = scores + planes(y, HP, M, N) * (1 / SHRINK)
    else:
        x, change, slope, turned = scores, scores, scores, scores
    logits = _finish(logits, static, padding, item, i0, j0, queries, keys, offset, start,
                     static_i, static_c, static_r, along, piece, PIECES, TABLES, CAUSAL, STATIC, PADDING,
                     HEADS, HP, M, N)  # fmt: skip
    return tl.exp2(logits - top) * inverse, x.to(STORE), change.to(STORE), slope, turned


@triton.jit
def _d_logits(p, d_p, delta, w2, HP: tl.constexpr, DP: tl.constexpr, M: tl.constexpr, N: tl.constexpr,
              MIX: tl.constexpr, STORE: tl.constexpr, TYPE: tl.constexpr):  # fmt: skip
    """Of the logits, [HP, M, N]; then, as cells, the same, and of the hidden units."""
    d_logits = p * (d_p - delta)
    if MIX:
        h, u = tl.arange(0, HP), tl.arange(0, DP)
        d_cells = cells(d_logits, HP, M, N).to(STORE)
        d_hidden = dot(d_cells, tl.load(w2 + h[:, None] * DP + u[None, :]), STORE, TYPE)
    else:
        d_cells, d_hidden = d_logits, d_logits
    return d_logits, d_cells, d_hidden


@triton.jit
def _d_scores(d_logits, d_z, wa, HP: tl.constexpr, DP: tl.constexpr, M: tl.constexpr, N: tl.constexpr,
              MIX: tl.constexpr, STORE: tl.constexpr, TYPE: tl.constexpr):  # fmt: skip
    if MIX:
        h, u = tl.arange(0, HP), tl.arange(0, DP)
        back = dot(d_z, tl.load(wa + u[:, None] * HP + h[None, :]), STORE, TYPE)
        d_logits = d_logits + planes(back, HP, M, N)
    return d_logits


@triton.jit(do_not_specialize=_SIZES)
def backward_queries(
    q, k, v, wa, w2, static, pre, table, of_rows, kinks, padding, grad, largest, inverses, delta, d_q, rest, d_of_rows,
    scale, offset, start, queries, keys,
    q_b, q_h, q_t, k_b, k_h, k_t, v_b, v_h, v_t, grad_b, grad_h, grad_t, row_b, row_h, dq_b, dq_h, dq_t,
    static_i, static_c, static_r, pre_i, pre_c, pre_r, of_rows_i,
    HEADS: tl.constexpr, GROUP: tl.constexpr, WIDTH: tl.constexpr, VALUES: tl.constexpr, HIDDEN: tl.constexpr,
    PK: tl.constexpr, PV: tl.constexpr, SK: tl.constexpr, SV: tl.constexpr,
    HP: tl.constexpr, DP: tl.constexpr, M: tl.constexpr, N: tl.constexpr, PIECES: tl.constexpr, KINKS: tl.constexpr,
    MIX: tl.constexpr, TABLES: tl.constexpr, CAUSAL: tl.constexpr, STATIC: tl.constexpr, PADDING: tl.constexpr,
    SLOPE: tl.constexpr, SHRINK: tl.constexpr, STORE: tl.constexpr, TYPE: tl.constexpr,
):  # fmt: skip
    """A program computes SK columns of the gradient of M query rows of one item. ``rest`` is the sum of the gradients
    of a row's logits. It is not exactly 0, because ``delta`` comes from an output of rounded weights. ``d_of_rows``,
    [item, row], is the gradient of a ramp's rows."""
    i0 = tl.program_id(0) * M
    item = tl.program_id(1)
    mine = tl.program_id(2) * SK
    rows = i0 + tl.arange(0, M)
    top = _row_values(largest, item, rows, queries, row_b, row_h, HEADS, HP, float("inf"))
    inverse = _row_values(inverses, item, rows, queries, row_b, row_h, HEADS, HP, 0.0)
    row_delta = _row_values(delta, item, rows, queries, row_b, row_h, HEADS, HP, 0.0)
    sums = tl.zeros((HP, M, SK), tl.float32)
    over = tl.zeros((HP, M, 1), tl.float32)
    if PIECES:
        sums_of_rows = tl.zeros((M,), tl.float32)
    end = keys
    if CAUSAL:
        end = tl.minimum(end, offset + i0 + M)
    for j0 in tl.range(0, end, N, disable_licm=True):
        cols = j0 + tl.arange(0, N)
        scores = _product(q, rows, queries, q_b, q_h, q_t, k, cols, keys, k_b, k_h, k_t, item,
                          HEADS, GROUP, WIDTH, HP, PK, STORE, TYPE) * scale  # fmt: skip
        along, piece = place_of_cells(table, of_rows, kinks, item, i0, j0, queries, keys, start, of_rows_i, KINKS, M, N)
        p, _x, _change, slope, _turned = _weights(
            scores, top, inverse, wa, w2, static, pre, along, piece, padding,
            item, i0, j0, offset, start, queries, keys, static_i, static_c, static_r, pre_i, pre_c, pre_r,
            HEADS, HIDDEN, HP, DP, M, N, PIECES,
            MIX, TABLES, CAUSAL, STATIC, PADDING, SLOPE, SHRINK, STORE, TYPE)  # fmt: skip
        d_p = _product(grad, rows, queries, grad_b, grad_h, grad_t, v, cols, keys, v_b, v_h, v_t, item,
                       HEADS, GROUP, VALUES, HP, PV, STORE, TYPE)  # fmt: skip
        d_logits, _d_cells, d_hidden = _d_logits(p, d_p, row_delta, w2, HP, DP, M, N, MIX, STORE, TYPE)
        d_scores = _d_scores(d_logits, d_hidden * slope, wa, HP, DP, M, N, MIX, STORE, TYPE)
        over += tl.sum(d_logits, axis=2, keep_dims=True)
        if PIECES:
            d_along = gradient_along(d_logits, d_hidden * slope, static, pre, piece, HP, DP, M, N, MIX)
            d_along *= entries(table, i0, j0, queries, keys, start, M, N)
            sums_of_rows += tl.sum(tl.reshape(d_along, (M, N)), axis=1)
        again = _rows(k, item, cols, keys, mine, k_b, k_h, k_t, HEADS, GROUP, WIDTH, HP, SK, "evict_first")
        sums += dot(d_scores, again, STORE, TYPE)
    _store_rows(d_q, sums * scale, item, rows, queries, mine, dq_b, dq_h, dq_t, HEADS, WIDTH, HP, SK)
    if mine == 0:
        _store_row_values(rest, over, item, rows, queries, row_b, row_h, 1, HEADS, HP)
        if PIECES:
            tl.store(d_of_rows + item.to(tl.int64) * queries + rows, sums_of_rows, mask=rows < queries)


@triton.jit(do_not_specialize=_SIZES)
def backward_keys(
    q, k, v, wa, w2, static, pre, table, of_rows, kinks, padding, grad, largest, inverses, delta, d_k, d_v,
    scale, offset, start, queries, keys,
    q_b, q_h, q_t, k_b, k_h, k_t, v_b, v_h, v_t, grad_b, grad_h, grad_t, row_b, row_h,
    dk_b, dk_h, dk_t, dv_b, dv_h, dv_t,
    static_i, static_c, static_r, pre_i, pre_c, pre_r, of_rows_i,
    HEADS: tl.constexpr, GROUP: tl.constexpr, WIDTH: tl.constexpr, VALUES: tl.constexpr, HIDDEN: tl.constexpr,
    PK: tl.constexpr, PV: tl.constexpr, SK: tl.constexpr, SV: tl.constexpr,
    HP: tl.constexpr, DP: tl.constexpr, M: tl.constexpr, N: tl.constexpr, PIECES: tl.constexpr, KINKS: tl.constexpr,
    MIX: tl.constexpr, TABLES: tl.constexpr, CAUSAL: tl.constexpr, STATIC: tl.constexpr, PADDING: tl.constexpr,
    FOR_K: tl.constexpr, FOR_V: tl.constexpr,
    SLOPE: tl.constexpr, SHRINK: tl.constexpr, STORE: tl.constexpr, TYPE: tl.constexpr,
):  # fmt: skip
    """A program computes SK columns of the gradients of N keys of one item (FOR_K), and SV columns of those of their
    values (FOR_V), separately for every query head."""
    j0 = tl.program_id(0) * N
    item = tl.program_id(1)
    share = tl.program_id(2)
    cols = j0 + tl.arange(0, N)
    if FOR_K:
        sums_k = tl.zeros((HP, N, SK), tl.float32)
    if FOR_V:
        sums_v = tl.zeros((HP, N, SV), tl.float32)
    begin = 0
    if CAUSAL:
        begin = tl.maximum(j0 - offset, 0) // M * M
    for i0 in tl.range(begin, queries, M, disable_licm=True):
        rows = i0 + tl.arange(0, M)
        scores = _product(q, rows, queries, q_b, q_h, q_t, k, cols, keys, k_b, k_h, k_t, item,
                          HEADS, GROUP, WIDTH, HP, PK, STORE, TYPE) * scale  # fmt: skip
        top = _row_values(largest, item, rows, queries, row_b, row_h, HEADS, HP, float("inf"))
        inverse = _row_values(inverses, item, rows, queries, row_b, row_h, HEADS, HP, 0.0)
        along, piece = place_of_cells(table, of_rows, kinks, item, i0, j0, queries, keys, start, of_rows_i, KINKS, M, N)
        p, _x, _change, slope, _turned = _weights(
            scores, top, inverse, wa, w2, static, pre, along, piece, padding,
            item, i0, j0, offset, start, queries, keys, static_i, static_c, static_r, pre_i, pre_c, pre_r,
            HEADS, HIDDEN, HP, DP, M, N, PIECES,
            MIX, TABLES, CAUSAL, STATIC, PADDING, SLOPE, SHRINK, STORE, TYPE)  # fmt: skip
        d_p = _product(grad, rows, queries, grad_b, grad_h, grad_t, v, cols, keys, v_b, v_h, v_t, item,
                       HEADS, GROUP, VALUES, HP, PV, STORE, TYPE)  # fmt: skip
        row_delta = _row_values(delta, item, rows, queries, row_b, row_h, HEADS, HP, 0.0)
        d_logits, _d_cells, d_hidden = _d_logits(p, d_p, row_delta, w2, HP, DP, M, N, MIX, STORE, TYPE)
        if FOR_V:
            d_out = _rows(grad, item, rows, queries, share * SV, grad_b, grad_h, grad_t, HEADS, 1, VALUES, HP, SV)
            sums_v += dot(turn(p), d_out, STORE, TYPE)
        if FOR_K:
            d_scores = _d_scores(d_logits, d_hidden * slope, wa, HP, DP, M, N, MIX, STORE, TYPE)
            again = _rows(q, item, rows, queries, share * SK, q_b, q_h, q_t, HEADS, 1, WIDTH, HP, SK, "evict_first")
            sums_k += dot(turn(d_scores), again, STORE, TYPE)
    if FOR_K:
        _store_rows(d_k, sums_k * scale, item, cols, keys, share * SK, dk_b, dk_h, dk_t, HEADS, WIDTH, HP, SK)
    if FOR_V:
        _store_rows(d_v, sums_v, item, cols, keys, share * SV, dv_b, dv_h, dv_t, HEADS, VALUES, HP, SV)


@triton.jit(do_not_specialize=[*_SIZES, "first_band"])
def backward_terms(
    q, k, v, wa, w2, static, pre, table, of_rows, kinks, padding, grad, largest, inverses, delta,
    d_static, d_pre, d_table, d_wa, d_w2,
    scale, offset, start, queries, keys, first_band,
    q_b, q_h, q_t, k_b, k_h, k_t, v_b, v_h, v_t, grad_b, grad_h, grad_t, row_b, row_h,
    static_i, static_c, static_r, pre_i, pre_c, pre_r, of_rows_i,
    HEADS: tl.constexpr, GROUP: tl.constexpr, WIDTH: tl.constexpr, VALUES: tl.constexpr, HIDDEN: tl.constexpr,
    PK: tl.constexpr, PV: tl.constexpr, SK: tl.constexpr, SV: tl.constexpr,
    HP: tl.constexpr, DP: tl.constexpr, M: tl.constexpr, N: tl.constexpr, PIECES: tl.constexpr, KINKS: tl.constexpr,
    MIX: tl.constexpr, TABLES: tl.constexpr, CAUSAL: tl.constexpr, STATIC: tl.constexpr, PADDING: tl.constexpr,
    FOR_WEIGHTS: tl.constexpr, FOR_TERMS: tl.constexpr,
    SLOPE: tl.constexpr, SHRINK: tl.constexpr, STORE: tl.constexpr, TYPE: tl.constexpr,
):  # fmt: skip
    """Gradients of the weights of f (FOR_WEIGHTS) and of the position terms (FOR_TERMS), without atomics. For W2 and
    ``pre``, this is only the part through the difference that scores make. The host computes the other part from the
    gradient of ``static``.

    With TABLES, a program computes a block diagonal of one item. All its tiles have the same lags, so it sums the
    gradients of the terms in registers, and the host sums the diagonals of one tile per band. Without TABLES, a program
    computes the rows of one tile and writes the gradient of every cell. Every program writes its own sums for the
    weights, and the host adds them. For ramps, a program sums over the cells in each piece, and over its diagonals for
    ``table``.
    """
    item = tl.program_id(1)
    if TABLES:
        band = tl.program_id(0) + first_band
        i_first, j_first = tl.maximum(-band, 0) * M, tl.maximum(band, 0) * N
        steps = tl.minimum(tl.cdiv(queries - i_first, M), tl.cdiv(keys - j_first, N))
    else:
        i_first, j_first = tl.program_id(0) * M, 0
        end = keys
        if CAUSAL:
            end = tl.minimum(end, offset + i_first + M)
        steps = tl.cdiv(tl.maximum(end, 0), N)
    PARTS: tl.constexpr = 8  # of the cells, for one product per warp instead of a single long product
    if FOR_WEIGHTS:
        sums_wa, sums_w2 = tl.zeros((PARTS, DP, HP), tl.float32), tl.zeros((PARTS, HP, DP), tl.float32)
    if FOR_TERMS and PIECES:
        sums_table = tl.zeros((M * N, 1), tl.float32)
        slopes_static, levels_static = tl.zeros((PIECES, HP), tl.float32), tl.zeros((PIECES, HP), tl.float32)
        slopes_pre, levels_pre = tl.zeros((PIECES, DP), tl.float32), tl.zeros((PIECES, DP), tl.float32)
    elif FOR_TERMS:
        sums_static, sums_pre = tl.zeros((HP, M, N), tl.float32), tl.zeros((M * N, DP), tl.float32)
    h3, r3, c3 = tl.arange(0, HP)[:, None, None], tl.arange(0, M)[None, :, None], tl.arange(0, N)[None, None, :]
    cell, unit = tl.arange(0, M * N)[:, None], tl.arange(0, DP)[None, :]
    for step in tl.range(0, steps, disable_licm=True):
        j0 = j_first + step * N
        i0 = i_first + (step * M if TABLES else 0)
        rows, cols = i0 + tl.arange(0, M), j0 + tl.arange(0, N)
        scores = _product(q, rows, queries, q_b, q_h, q_t, k, cols, keys, k_b, k_h, k_t, item,
                          HEADS, GROUP, WIDTH, HP, PK, STORE, TYPE) * scale  # fmt: skip
        top = _row_values(largest, item, rows, queries, row_b, row_h, HEADS, HP, float("inf"))
        inverse = _row_values(inverses, item, rows, queries, row_b, row_h, HEADS, HP, 0.0)
        along, piece = place_of_cells(table, of_rows, kinks, item, i0, j0, queries, keys, start, of_rows_i, KINKS, M, N)
        p, x, change, slope, turned = _weights(
            scores, top, inverse, wa, w2, static, pre, along, piece, padding,
            item, i0, j0, offset, start, queries, keys, static_i, static_c, static_r, pre_i, pre_c, pre_r,
            HEADS, HIDDEN, HP, DP, M, N, PIECES,
            MIX, TABLES, CAUSAL, STATIC, PADDING, SLOPE, SHRINK, STORE, TYPE)  # fmt: skip
        d_p = _product(grad, rows, queries, grad_b, grad_h, grad_t, v, cols, keys, v_b, v_h, v_t, item,
                       HEADS, GROUP, VALUES, HP, PV, STORE, TYPE)  # fmt: skip
        row_delta = _row_values(delta, item, rows, queries, row_b, row_h, HEADS, HP, 0.0)
        d_logits, d_cells, d_hidden = _d_logits(p, d_p, row_delta, w2, HP, DP, M, N, MIX, STORE, TYPE)
        if FOR_WEIGHTS:
            K: tl.constexpr = M * N // PARTS
            d_z = (d_hidden * slope).to(STORE)
            d_z3, x3 = tl.reshape(d_z, (PARTS, K, DP)), tl.reshape(x, (PARTS, K, HP))
            sums_wa += dot(turn(d_z3), x3, STORE, TYPE)
            d_y3, change3 = tl.reshape(d_cells, (PARTS, K, HP)), tl.reshape(change, (PARTS, K, DP))
            sums_w2 += dot(turn(d_y3), change3, STORE, TYPE)
        if FOR_TERMS and PIECES:
            d_z = d_hidden * slope
            d_along = gradient_along(d_logits, d_z, static, pre, piece, HP, DP, M, N, MIX)
            sums_table += d_along * of_each_row(of_rows, item, i0, queries, of_rows_i, M, N)
            within = (piece == tl.arange(0, PIECES)[None, :]).to(tl.float32)
            d_y = cells(d_logits, HP, M, N)
            levels_static += sums_in_pieces(within, d_y, M * N, PIECES, HP, STORE, TYPE)
            slopes_static += sums_in_pieces(within, d_y * along, M * N, PIECES, HP, STORE, TYPE)
            if MIX:
                levels_pre += sums_in_pieces(within, d_z, M * N, PIECES, DP, STORE, TYPE)
                slopes_pre += sums_in_pieces(within, d_z * along, M * N, PIECES, DP, STORE, TYPE)
        elif FOR_TERMS and TABLES:
            sums_static += d_logits
            if MIX:
                sums_pre += d_hidden * turned
        if FOR_TERMS and not TABLES:
            at = item.to(tl.int64) * HEADS * queries * keys + (h3 * queries + i0 + r3) * keys + j0 + c3
            tl.store(d_static + at, d_logits, mask=(h3 < HEADS) & (i0 + r3 < queries) & (j0 + c3 < keys))
            if MIX:
                i, j = i0 + cell // N, j0 + cell % N
                at = item.to(tl.int64) * HIDDEN * queries * keys + (unit * queries + i) * keys + j
                tl.store(d_pre + at, d_hidden * turned, mask=(unit < HIDDEN) & (i < queries) & (j < keys))
    program = item.to(tl.int64) * tl.num_programs(0) + tl.program_id(0)
    if FOR_WEIGHTS:
        h, u = tl.arange(0, HP), tl.arange(0, DP)
        tl.store(d_wa + program * DP * HP + u[:, None] * HP + h[None, :], tl.sum(sums_wa, axis=0) * (1 / SHRINK))
        tl.store(d_w2 + program * HP * DP + h[:, None] * DP + u[None, :], tl.sum(sums_w2, axis=0) * (1 / SHRINK))
    if FOR_TERMS and PIECES:
        tl.store(d_table + program * M * N + cell, sums_table)
        place = program * (2 * PIECES) + 2 * tl.arange(0, PIECES)[:, None]
        h, u = tl.arange(0, HP)[None, :], tl.arange(0, DP)[None, :]
        tl.store(d_static + place * HP + h, slopes_static)
        tl.store(d_static + (place + 1) * HP + h, levels_static)
        if MIX:
            tl.store(d_pre + place * DP + u, slopes_pre)
            tl.store(d_pre + (place + 1) * DP + u, levels_pre)
    elif FOR_TERMS and TABLES:
        tl.store(d_static + program * HP * M * N + (h3 * M + r3) * N + c3, sums_static)
        if MIX:
            tl.store(d_pre + program * M * N * DP + cell * DP + unit, sums_pre)
