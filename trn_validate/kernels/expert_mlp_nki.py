"""The kernels of :mod:`.expert_mlp`, on rows that :mod:`.expert_blocks` laid out.

With one expert's weights, a block of rows x, and ``h = silu(gate) * up``:

- ``gate = x @ w1.T``, ``up = x @ w3.T``, ``out = h @ w2.T``
- ``dh = dout @ w2``; dgate and dup as in :mod:`.swiglu`; ``dx = dgate @ w1 + dup @ w3``
- ``dw1 = dgate.T @ x``, ``dw3 = dup.T @ x``, ``dw2 = dout.T @ h``, summed over the blocks

Products accumulate in float32 in PSUM; what goes on to a further product is rounded once to the
dtype of the rows. Each block reads the weights of its expert anew, and a block and its weights'
tiles lie in SBUF: in float32 up to 8,000 columns on either side.
"""

from __future__ import annotations

from trn_validate.kernels.namespace import Tensor, nisa, nki, nl
from trn_validate.kernels.swiglu import activated, gradients
from trn_validate.kernels.tiles import BANK, ROWS, load, piece, pieces, transposed


@nki.jit
def forward_kernel(x: Tensor, expert: Tensor, w1: Tensor, w3: Tensor, w2: Tensor) -> Tensor:
    """Outputs out like ``x`` (blocks * 128, D), and gate and up (blocks * 128, F).

    ``expert`` is (blocks, 1) int32. The weights come with what is summed over first: ``w1`` and
    ``w3`` (E, D, F), ``w2`` (E, F, D). Cores take blocks in turn.
    """
    hidden = w1.shape[2]
    out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
    gate = nl.ndarray((x.shape[0], hidden), dtype=x.dtype, buffer=nl.shared_hbm)
    up = nl.ndarray((x.shape[0], hidden), dtype=x.dtype, buffer=nl.shared_hbm)
    for block in range(nl.program_id(0), expert.shape[0], nl.num_programs(0)):
        part, number = nl.ds(block * ROWS, ROWS), load(expert[nl.ds(block, 1)])
        turned = turned_tiles(load(x[part]))
        h = nl.ndarray((ROWS, hidden), dtype=x.dtype, buffer=nl.sbuf)
        for chunk in range(pieces(hidden, BANK)):
            across = nl.ds(chunk * BANK, piece(chunk, hidden, BANK))
            gate_sum = product(turned, w1.select(0, number), across)
            up_sum = product(turned, w3.select(0, number), across)
            store(gate[part, across], gate_sum)
            store(up[part, across], up_sum)
            gated = activated(nl.silu, gate_sum)
            nisa.tensor_tensor(dst=h[:, across], data1=gated, data2=up_sum, op=nl.multiply)
        down_rows(out[part], turned_tiles(h), w2.select(0, number))
    return out, gate, up


@nki.jit
def backward_kernel(
    grad: Tensor, gate: Tensor, up: Tensor, expert: Tensor, w1: Tensor, w3: Tensor, w2: Tensor
) -> Tensor:
    """Outputs dx like ``grad`` (blocks * 128, D), and dgate, dup and h like ``gate`` and ``up``.

    The weights come as the model has them: ``w1`` and ``w3`` (E, F, D), ``w2`` (E, D, F).
    """
    hidden = gate.shape[1]
    dx = nl.ndarray(grad.shape, dtype=grad.dtype, buffer=nl.shared_hbm)
    dgate = nl.ndarray(gate.shape, dtype=gate.dtype, buffer=nl.shared_hbm)
    dup = nl.ndarray(gate.shape, dtype=gate.dtype, buffer=nl.shared_hbm)
    h = nl.ndarray(gate.shape, dtype=gate.dtype, buffer=nl.shared_hbm)
    for block in range(nl.program_id(0), expert.shape[0], nl.num_programs(0)):
        part, number = nl.ds(block * ROWS, ROWS), load(expert[nl.ds(block, 1)])
        turned = turned_tiles(load(grad[part]))
        gate_tiles, up_tiles = [], []
        for chunk in range(pieces(hidden, BANK)):
            across = nl.ds(chunk * BANK, piece(chunk, hidden, BANK))
            above = product(turned, w2.select(0, number), across)
            gated, upper = load(gate[part, across]), load(up[part, across])
            made_gate, made_up = gradients(above, gated, upper, gate.dtype)
            nisa.dma_copy(dst=dgate[part, across], src=made_gate)
            nisa.dma_copy(dst=dup[part, across], src=made_up)
            both = activated(nl.silu, gated)
            nisa.tensor_tensor(dst=both, data1=both, data2=upper, op=nl.multiply)
            store(h[part, across], both)
            gate_tiles.extend(turned_tiles(made_gate))
            up_tiles.extend(turned_tiles(made_up))
        input_rows(dx[part], gate_tiles, w1.select(0, number), up_tiles, w3.select(0, number))
    return dx, dgate, dup, h


@nki.jit
def weights_kernel(
    grad: Tensor,
    x: Tensor,
    dgate: Tensor,
    dup: Tensor,
    h: Tensor,
    expert: Tensor,
    more: Tensor,
    experts: int,
) -> Tensor:
    """Outputs dw1 and dw3 (experts, F, D) and dw2 (experts, D, F) in float32.

    ``grad`` and ``x`` are (blocks * 128, D), ``dgate``, ``dup`` and ``h`` (blocks * 128, F),
    ``expert`` and ``more`` as :class:`.expert_blocks.Blocks` has them. Cores take parts of the
    weights, and all blocks of each, so that no core adds to what another wrote.
    """
    wide, hidden = x.shape[1], h.shape[1]
    dw1 = nl.ndarray((experts, hidden, wide), dtype=nl.float32, buffer=nl.shared_hbm)
    dw2 = nl.ndarray((experts, wide, hidden), dtype=nl.float32, buffer=nl.shared_hbm)
    dw3 = nl.ndarray((experts, hidden, wide), dtype=nl.float32, buffer=nl.shared_hbm)
    one_weight(dw1, dgate, x, expert, more)
    one_weight(dw2, grad, h, expert, more)
    one_weight(dw3, dup, x, expert, more)
    return dw1, dw2, dw3


def one_weight(dw: Tensor, left: Tensor, right: Tensor, expert: Tensor, more: Tensor) -> None:
    """``dw[e] = left.T @ right`` over the blocks of each expert e."""
    tall, wide = dw.shape[1], dw.shape[2]
    parts = pieces(wide, BANK)
    for number in range(nl.program_id(0), pieces(tall, ROWS) * parts, nl.num_programs(0)):
        row, column = number // parts, number % parts
        down = nl.ds(row * ROWS, piece(row, tall, ROWS))
        across = nl.ds(column * BANK, piece(column, wide, BANK))
        one_part(dw[:, down, across], left[:, down], right[:, across], expert, more)


def one_part(dw: Tensor, left: Tensor, right: Tensor, expert: Tensor, more: Tensor) -> None:
    """At most 128 rows and 512 columns of a weight's gradient, of all experts.

    The sum restarts where an expert does and is written after each block, so that the last
    block of an expert leaves the whole. Guess: copies to one tensor keep their order.
    """
    shape = (dw.shape[1], dw.shape[2])
    total = nl.ndarray(shape, dtype=nl.float32, buffer=nl.sbuf)
    nisa.memset(dst=total, value=0.0)
    for block in range(expert.shape[0]):
        part = nl.ds(block * ROWS, ROWS)
        here = nl.ds(block, 1)
        added = nl.ndarray(shape, dtype=nl.float32, buffer=nl.psum)
        nisa.nc_matmul(
            dst=added, stationary=load(left[part]), moving=load(right[part]), accumulate=False
        )
        keep = load(more[here].broadcast(0, shape[0]))
        nisa.tensor_scalar(dst=total, data=total, op0=nl.multiply, operand0=keep)
        nisa.tensor_tensor(dst=total, data1=total, data2=added, op=nl.add)
        nisa.dma_copy(dst=dw.select(0, load(expert[here])), src=total)


def product(turned: Tensor, weight: Tensor, across: Tensor) -> Tensor:
    """A tile in PSUM (128, at most 512): rows whose transposed tiles are ``turned``, by columns
    ``across`` of ``weight`` (summed over, columns) in HBM."""
    total = nl.ndarray((ROWS, across.size), dtype=nl.float32, buffer=nl.psum)
    add_product(total, turned, weight, across, False)
    return total


def add_product(total: Tensor, turned: Tensor, weight: Tensor, across: Tensor, adds: bool) -> None:
    """Add such a product to ``total``, or overwrite it."""
    deep = weight.shape[0]
    for index in range(pieces(deep, ROWS)):
        down = nl.ds(index * ROWS, piece(index, deep, ROWS))
        nisa.nc_matmul(
            dst=total,
            stationary=turned[index],
            moving=load(weight[down, across]),
            accumulate=adds or index > 0,
        )


def down_rows(out: Tensor, turned: Tensor, w2: Tensor) -> None:
    """``out`` (128, D) of one block, from the transposed tiles of h."""
    columns = out.shape[1]
    for chunk in range(pieces(columns, BANK)):
        across = nl.ds(chunk * BANK, piece(chunk, columns, BANK))
        store(out[:, across], product(turned, w2, across))


def input_rows(dx: Tensor, dgate: Tensor, w1: Tensor, dup: Tensor, w3: Tensor) -> None:
    """``dx`` (128, D) of one block, from the transposed tiles of dgate and dup."""
    columns = dx.shape[1]
    for chunk in range(pieces(columns, BANK)):
        across = nl.ds(chunk * BANK, piece(chunk, columns, BANK))
        total = product(dgate, w1, across)
        add_product(total, dup, w3, across, True)
        store(dx[:, across], total)


def turned_tiles(data: Tensor) -> Tensor:
    """Tiles (at most 128, 128), in a list: the columns of ``data`` (128, columns), transposed."""
    columns = data.shape[1]
    tiles = []
    for index in range(pieces(columns, ROWS)):
        part = nl.ds(index * ROWS, piece(index, columns, ROWS))
        # NKI's guide knows lists and append, and no comprehensions.
        tiles.append(transposed(data[:, part]))
    return tiles


def store(dst: Tensor, src: Tensor) -> None:
    """Round a tile on chip to the dtype of ``dst`` in HBM, and copy it there."""
    made = nl.ndarray(src.shape, dtype=dst.dtype, buffer=nl.sbuf)
    nisa.tensor_copy(dst=made, src=src)
    nisa.dma_copy(dst=dst, src=made)
