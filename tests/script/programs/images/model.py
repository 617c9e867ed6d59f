"""The network."""

import settings
from torch import nn


class ConvNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(1, settings.CHANNELS, 3, padding=1)
        self.head = nn.Linear(settings.CHANNELS * 16, 10)

    def forward(self, images):
        hidden = nn.functional.max_pool2d(nn.functional.relu(self.conv(images)), 2)
        return self.head(hidden.flatten(1))
