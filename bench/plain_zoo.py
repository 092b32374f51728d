"""Straightforward PyTorch versions of the zoo's members, which share the layer's weights.

They are written as people write them: batched products and softmax, patterns as a mask on the whole map where no blocks
offer themselves.
"""

import math

import torch
from torch.nn import functional

WIDTH, HEADS = 256, 4


def split(rows):
    """(B, n, H·w) → (B, H, n, w)."""
    return rows.unflatten(-1, (HEADS, -1)).transpose(-3, -2)


def join(heads):
    return heads.transpose(-3, -2).flatten(-2)


def projected(layer, x):
    return split(layer.w_q(x)), split(layer.w_k(x)), split(layer.w_v(x))


def option(layer, name):
    given = dict(part.split("=") for part in layer._recipe[-1].split(", ") if part)
    text = given.get(name) or next(o.default for o in layer.member.options if o.name == name)
    return int(text) if text.isdigit() else text


def masked(q, k, v, mask):
    scores = (q @ k.transpose(-2, -1) / math.sqrt(q.shape[-1])).masked_fill(~mask, float("-inf"))
    return scores.softmax(-1) @ v


def places(x):
    n = torch.arange(x.shape[1], device=x.device)
    return n[:, None], n[None]


def softmax(layer, x):
    q, k, v = projected(layer, x)
    return layer.w_o(join((q @ k.transpose(-2, -1) / math.sqrt(q.shape[-1])).softmax(-1) @ v))


def local(layer, x):
    block, n = option(layer, "block"), x.shape[1]
    padding = -n % block
    q, k, v = (functional.pad(t, (0, 0, 0, padding)).unflatten(2, (-1, block)) for t in projected(layer, x))
    real = (torch.arange(n + padding, device=x.device) < n).view(-1, 1, block)
    return layer.w_o(join(masked(q, k, v, real).flatten(2, 3)[:, :, :n]))


def sparse(layer, x):
    i, j = places(x)
    size = math.isqrt(x.shape[1] - 1) + 1
    mask = (i // size == j // size) | (j % size >= size - option(layer, "summary"))
    return layer.w_o(join(masked(*projected(layer, x), mask)))


def beside(t, size):
    """(B, H, n, w) → (B, H, n/size, 3·size, w): each block with the one before and the one behind."""
    t = functional.pad(t, (0, 0, size, size)).unflatten(2, (-1, size))
    return torch.cat([t[:, :, :-2], t[:, :, 1:-1], t[:, :, 2:]], 3)


def band(x, size):
    """Places of the keys beside each block (n/size, 1, 3·size), and which are in the band (n/size, size, 3·size)."""
    first = torch.arange(0, x.shape[1], size, device=x.device)[:, None, None]
    i = first + torch.arange(size, device=x.device)[:, None]
    j = first + torch.arange(-size, 2 * size, device=x.device)
    return j, ((i - j).abs() <= size) & (j >= 0) & (j < x.shape[1])


def longformer(layer, x):
    q, k, v = projected(layer, x)
    count, size = option(layer, "globals"), option(layer, "window") // 2
    j, near = band(x, size)
    blocks = q.unflatten(2, (-1, size)) / math.sqrt(q.shape[-1])
    scores = (blocks @ beside(k, size).transpose(-2, -1)).masked_fill(~(near & (j >= count)), float("-inf"))
    weights = torch.cat([blocks @ k[:, :, None, :count].transpose(-2, -1), scores], -1).softmax(-1)
    y = weights[..., :count] @ v[:, :, None, :count] + weights[..., count:] @ beside(v, size)
    q, k, v = split(layer.global_q(x[:, :count])), split(layer.global_k(x)), split(layer.global_v(x))
    everywhere = torch.ones(1, 1, dtype=torch.bool, device=x.device)
    return layer.w_o(join(torch.cat([masked(q, k, v, everywhere), y.flatten(2, 3)[:, :, count:]], 2)))


def bigbird(layer, x):
    """Without random blocks, which only the library can draw: the layer is made with random=0."""
    i, j = (place // option(layer, "block") for place in places(x))
    last = (x.shape[1] - 1) // option(layer, "block")
    ends = (i == 0) | (i == last) | (j == 0) | (j == last)
    return layer.w_o(join(masked(*projected(layer, x), ends | ((i - j).abs() <= option(layer, "window") // 2))))


def pixelfly(layer, x):
    i, j = places(x)
    apart = (i // option(layer, "block")) ^ (j // option(layer, "block"))
    linked = ((apart & (apart - 1)) == 0) & (apart < option(layer, "butterfly"))
    mask = linked | (i < option(layer, "rank")) | (j < option(layer, "rank"))
    return layer.w_o(join(masked(*projected(layer, x), mask)))


def linformer(layer, x):
    q, k, v = projected(layer, x)
    e = layer.e[:, :, : x.shape[1]]
    k, v = e @ k, e @ v
    return layer.w_o(join((q @ k.transpose(-2, -1) / math.sqrt(q.shape[-1])).softmax(-1) @ v))


def reformer(layer, x):
    from reformer_pytorch import LSHAttention

    rounds = option(layer, "rounds")

    class WithOurRotations(LSHAttention):
        def hash_vectors(self, n_buckets, vectors, **_):
            rotated = torch.einsum("bhtf,rhfi->bhrti", vectors.unflatten(0, (-1, HEADS)), layer.rotations.to(vectors))
            buckets = torch.cat([rotated, -rotated], -1).argmax(-1)
            return (buckets + n_buckets * torch.arange(rounds, device=x.device)[:, None]).flatten(2).flatten(0, 1)

    attention = WithOurRotations(bucket_size=option(layer, "chunk"), n_hashes=rounds, attend_across_buckets=False,
                                 allow_duplicate_attention=False)
    # The counts of duplicates are float32 there, and would not go with values in half precision.
    with torch.autocast(x.device.type, x.dtype, enabled=x.dtype in (torch.bfloat16, torch.float16)):
        mixed = attention(split(layer.w_qk(x)).flatten(0, 1), split(layer.w_v(x)).flatten(0, 1))[0]
    return layer.w_o(join(mixed.unflatten(0, (-1, HEADS)).to(x)))


def sinkhorn(layer, x):
    block = option(layer, "block")
    q, k, v = (t.unflatten(2, (-1, block)) for t in projected(layer, x))
    sums = x.unflatten(1, (-1, block)).sum(2)
    scores = layer.w_p(layer.w_b(sums).relu()).unflatten(2, (HEADS, -1)).transpose(1, 2)[..., : sums.shape[1]]
    for _ in range(option(layer, "iterations")):
        scores = scores - scores.logsumexp(-1, True)
        scores = scores - scores.logsumexp(-2, True)
    sort = scores.exp()
    keys, values = (torch.cat([t, torch.einsum("bhij,bhjtw->bhitw", sort, t)], 3) for t in (k, v))
    y = (q @ keys.transpose(-2, -1) / math.sqrt(q.shape[-1])).softmax(-1) @ values
    return layer.w_o(join(y.flatten(2, 3)))


def synthesizer(layer, x):
    n = x.shape[1]
    return layer.w_o(join(layer.r[:, :n, :n].softmax(-1) @ split(layer.w_v(x))))


def kernel(layer, f_q, f_k, v, weigh):
    total = f_q @ f_k.sum(-2).unsqueeze(-1)
    return layer.w_o(join(f_q @ (f_k.transpose(-2, -1) @ v) / weigh(total)))


def linear(layer, x):
    q, k, v = projected(layer, x)
    return kernel(layer, functional.elu(q) + 1, functional.elu(k) + 1, v, lambda total: total + 1e-6)


def performer(layer, x):
    q, k, v = projected(layer, x)

    def features(t, over):
        t = t * t.shape[-1] ** -0.25
        product = t @ layer.features.t()
        highest = product.amax(over, keepdim=True).detach()
        return ((product - t.square().sum(-1, True) / 2 - highest).exp() + 1e-4) * len(layer.features) ** -0.5

    return kernel(layer, features(q, -1), features(k, (-2, -1)), v, lambda total: total)


def cosformer(layer, x):
    q, k, v = projected(layer, x)
    n = x.shape[1]
    angle = (math.pi / 2 * torch.arange(1, n + 1, device=x.device, dtype=x.dtype) / n)[:, None]
    q, k = (torch.cat([t.relu() * angle.sin(), t.relu() * angle.cos()], -1) for t in (q, k))
    return kernel(layer, q, k, v, lambda total: total.clamp_min(1e-6))


def fnet(layer, x):
    return torch.fft.fft(torch.fft.fft(x.float() if x.dtype == torch.bfloat16 else x), dim=1).real.to(x.dtype)


def nystromformer(layer, x):
    q, k, v = projected(layer, x)
    q, k = q * q.shape[-1] ** -0.25, k * k.shape[-1] ** -0.25
    count = option(layer, "landmarks")
    marks_q, marks_k = (t.unflatten(2, (count, -1)).mean(3) for t in (q, k))
    to_marks, between, from_marks = ((a @ b.transpose(-2, -1)).softmax(-1)
                                     for a, b in ((q, marks_k), (marks_q, marks_k), (marks_q, k)))
    scale = between.abs().sum(-2).amax(-1) * between.abs().sum(-1).amax(-1)
    z = between.transpose(-2, -1) / scale[..., None, None]
    one = torch.eye(count, device=x.device, dtype=x.dtype)
    for _ in range(option(layer, "iterations")):
        az = between @ z
        z = z @ (13 * one - az @ (15 * one - az @ (7 * one - az))) / 4
    y = to_marks @ z @ (from_marks @ v)
    return layer.w_o(join(y + functional.conv2d(v, layer.conv, padding=(layer.conv.shape[2] // 2, 0), groups=HEADS)))


def yoso(layer, x):
    """The map of the hashes' agreement, with the paper's gradient."""
    q, k, v = projected(layer, x)
    q, k = functional.normalize(q, dim=-1), functional.normalize(k, dim=-1)
    hashes, tau = option(layer, "hashes"), option(layer, "tau")
    with torch.no_grad():
        bits = [(t @ layer.directions.t().to(t.dtype) > 0).unflatten(-1, (hashes, tau)) for t in (q, k)]
        power = 2 ** torch.arange(tau, device=x.device)
        code_q, code_k = ((b * power).sum(-1) for b in bits)
        share = sum((code_q[..., h, None] == code_k[..., None, :, h]).to(x.dtype) for h in range(hashes)) / hashes
    cosine = q @ k.transpose(-2, -1)
    weights = share * (1 + (cosine - cosine.detach()) * tau / 2)
    return layer.w_o(join(functional.normalize(weights @ v, dim=-1)))


def scatterbrain(layer, x):
    q, k, v = projected(layer, x)
    size = option(layer, "window") // 2
    _, near = band(x, size)

    def features(t):
        t = t * t.shape[-1] ** -0.25
        return (t @ layer.features.t() - t.square().sum(-1, True) / 2).exp() * len(layer.features) ** -0.5

    f_q, f_k = features(q), features(k)
    v = functional.pad(v, (0, 1), value=1.0)  # a column of ones has the sums of the weights
    exact = (q.unflatten(2, (-1, size)) @ beside(k, size).transpose(-2, -1) / math.sqrt(q.shape[-1])).exp()
    estimate = f_q.unflatten(2, (-1, size)) @ beside(f_k, size).transpose(-2, -1)
    sums = f_q @ (f_k.transpose(-2, -1) @ v)
    sums = sums + ((exact - estimate).masked_fill(~near, 0) @ beside(v, size)).flatten(2, 3)
    return layer.w_o(join(sums[..., :-1] / sums[..., -1:]))


def luna(layer, x):
    scale = (WIDTH // HEADS) ** -0.5
    pack = (split(layer.p_q(layer.slots.z))[None] @ split(layer.p_k(x)).transpose(-2, -1) * scale).softmax(-1)
    c = join(pack @ split(layer.p_v(x)))
    unpack = (split(layer.w_q(x)) @ split(layer.w_k(c)).transpose(-2, -1) * scale).softmax(-1)
    return layer.w_o(join(unpack @ split(layer.w_v(c))))


def flowformer(layer, x):
    q, k, v = projected(layer, x)
    q, k = q.sigmoid(), k.sigmoid()
    incoming, outgoing = q @ k.sum(-2).unsqueeze(-1), k @ q.sum(-2).unsqueeze(-1)
    conserved_in = q @ (k / outgoing).sum(-2).unsqueeze(-1)
    conserved_out = k @ (q / incoming).sum(-2).unsqueeze(-1)
    gathered = k.transpose(-2, -1) @ (v * conserved_out.softmax(-2) * x.shape[1])
    return layer.w_o(join((q / incoming) @ gathered * conserved_in.sigmoid()))


def dba_plain(layer, x):
    """Form paper, as its equations stand: per head, with the matrices of all tokens."""
    scale = (WIDTH // HEADS) ** -0.5
    q, k, v = projected(layer, x)
    w_r, w_c = (split(layer.slots.z)[None] @ t.transpose(-2, -1) * scale for t in (q, k))
    restore = layer.f_r(x).unflatten(-1, (HEADS, -1)).transpose(1, 2).softmax(-1)
    compress = layer.f_c(x).unflatten(-1, (HEADS, -1)).transpose(1, 2).softmax(-2)
    asks, asked = (w.softmax(-1) @ t @ layer.r for w, t in ((w_r, q), (w_c, k)))
    between = (asks @ asked.transpose(-2, -1) / math.sqrt(layer.r.shape[-1])).softmax(-1)
    return layer.w_o(join(restore @ (between @ (compress.transpose(-2, -1) @ v))))


PLAIN = {"softmax": softmax, "dba": dba_plain, "local": local, "sparse": sparse, "longformer": longformer,
         "bigbird": bigbird, "linformer": linformer, "reformer": reformer, "sinkhorn": sinkhorn,
         "synthesizer": synthesizer, "linear": linear, "performer": performer, "cosformer": cosformer, "fnet": fnet,
         "nystromformer": nystromformer, "yoso": yoso, "scatterbrain": scatterbrain, "pixelfly": pixelfly, "luna": luna,
         "flowformer": flowformer}
MULTIPLE_OF = {"longformer": 256, "reformer": 128, "sinkhorn": 64, "nystromformer": 128, "scatterbrain": 32}
"""Tokens that these versions take, with default options: whole blocks, chunks and segments."""
WHOLE_MAP = ("softmax", "sparse", "bigbird", "synthesizer", "yoso", "pixelfly")
BANDS = ("longformer", "scatterbrain")
