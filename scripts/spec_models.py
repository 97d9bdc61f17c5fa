"""Small models that ship with memest as specs and belong to no library; scripts/export_spec.py writes their specs."""
import torch
from torch import nn
from torch.nn import functional as F


class LeNet5(nn.Sequential):
    """LeNet-5 with ReLU and max pooling, for images of 28 x 28."""

    def __init__(self, classes=10):
        super().__init__(
            nn.Conv2d(1, 6, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(6, 16, 5), nn.ReLU(), nn.MaxPool2d(2),
            nn.Flatten(), nn.Linear(400, 120), nn.ReLU(), nn.Linear(120, 84), nn.ReLU(), nn.Linear(84, classes))


class MLP(nn.Sequential):
    """Two hidden layers of 512."""

    def __init__(self, classes=10):
        super().__init__(nn.Linear(784, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, classes))


class UNet(nn.Module):
    """The plain U-Net with batch norm: widths 64 to 1024, transposed convolutions, skip connections by cat."""

    def __init__(self, classes=2, inputs=3, width=64, depth=4):
        super().__init__()
        widths = [width * 2 ** i for i in range(depth + 1)]

        def block(a, b):
            return nn.Sequential(nn.Conv2d(a, b, 3, padding=1, bias=False), nn.BatchNorm2d(b), nn.ReLU(inplace=True),
                                 nn.Conv2d(b, b, 3, padding=1, bias=False), nn.BatchNorm2d(b), nn.ReLU(inplace=True))
        self.down = nn.ModuleList(block(a, b) for a, b in zip([inputs] + widths, widths))
        self.up = nn.ModuleList(nn.ConvTranspose2d(2 * w, w, 2, 2) for w in reversed(widths[:-1]))
        self.join = nn.ModuleList(block(2 * w, w) for w in reversed(widths[:-1]))
        self.pool = nn.MaxPool2d(2)
        self.head = nn.Conv2d(width, classes, 1)

    def forward(self, x):
        skips = []
        for i, down in enumerate(self.down):
            x = down(x if i == 0 else self.pool(x))
            skips.append(x)
        skips.pop()
        for up, join in zip(self.up, self.join):
            x = join(torch.cat([skips.pop(), up(x)], 1))
        return self.head(x)


class Attention(nn.Module):
    """Self-attention: packed projection, scaled dot products, output projection."""

    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)

    def forward(self, x):
        batch, length, width = x.shape
        q, k, v = self.qkv(x).view(batch, length, 3, self.heads, width // self.heads).permute(2, 0, 3, 1, 4).unbind(0)
        y = F.scaled_dot_product_attention(q, k, v)
        return self.out(y.transpose(1, 2).reshape(batch, length, width))


class EncoderBlock(nn.Module):
    """A pre-norm transformer layer."""

    def __init__(self, width, heads, hidden, dropout):
        super().__init__()
        self.norm1 = nn.LayerNorm(width)
        self.attention = Attention(width, heads)
        self.dropout = nn.Dropout(dropout)
        self.norm2 = nn.LayerNorm(width)
        self.mlp = nn.Sequential(nn.Linear(width, hidden), nn.GELU(), nn.Linear(hidden, width), nn.Dropout(dropout))

    def forward(self, x):
        x = x + self.dropout(self.attention(self.norm1(x)))
        return x + self.mlp(self.norm2(x))


class TransformerEncoder(nn.Module):
    """Six layers of width 512 over tokens, learned positions, the mean over the sequence to the classes."""

    def __init__(self, classes=2, vocabulary=32000, length=512, width=512, heads=8, hidden=2048, layers=6, dropout=0.1):
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, width)
        self.positions = nn.Parameter(torch.empty(1, length, width))
        self.dropout = nn.Dropout(dropout)
        self.layers = nn.Sequential(*(EncoderBlock(width, heads, hidden, dropout) for _ in range(layers)))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, classes)

    def forward(self, ids):
        x = self.tokens(ids) + self.positions[:, :ids.shape[1]]
        x = self.norm(self.layers(self.dropout(x)))
        return self.head(x.mean(1))


class LSTMClassifier(nn.Module):
    """Tokens through two LSTM layers, the last step to the classes."""

    def __init__(self, classes=2, vocabulary=10000, width=128, hidden=256, layers=2):
        super().__init__()
        self.embed = nn.Embedding(vocabulary, width)
        self.rnn = nn.LSTM(width, hidden, layers, batch_first=True)
        self.head = nn.Linear(hidden, classes)

    def forward(self, ids):
        out, _ = self.rnn(self.embed(ids))
        return self.head(out[:, -1])


MODELS = {  # name: class, inputs, defaults, loss, description
    "lenet5": (LeNet5, [("x", ["batch", 1, 28, 28], torch.float32)], {"classes": 10}, "cross_entropy", "LeNet-5 with ReLU and max pooling, on MNIST's images"),
    "mlp": (MLP, [("x", ["batch", 784], torch.float32)], {"classes": 10}, "cross_entropy", "784 - 512 - 512 - classes, with ReLU"),
    "unet": (UNet, [("x", ["batch", 3, "image", "image"], torch.float32)], {"image": 256, "classes": 2}, "cross_entropy", "The plain U-Net with batch norm, widths 64 to 1024"),
    "transformer_encoder": (TransformerEncoder, [("ids", ["batch", "seq"], torch.int64)], {"seq": 128, "classes": 2}, "cross_entropy",
                            "Pre-norm transformer encoder: 6 layers, width 512, 8 heads, vocabulary 32,000, at most 512 tokens"),
    "lstm_classifier": (LSTMClassifier, [("ids", ["batch", "seq"], torch.int64)], {"seq": 128, "classes": 2}, "cross_entropy",
                        "Two LSTM layers of 256 over embedded tokens, the last step to the classes"),
}
